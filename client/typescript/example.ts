// Lists the models, and prints an answer while the server generates it.
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { InferenceService } from "./gen/nibble/v1/inference_service_pb.js";
import { ModelService } from "./gen/nibble/v1/model_service_pb.js";

const transport = createGrpcTransport({ baseUrl: "http://127.0.0.1:50051" });
const { models } = await createClient(ModelService, transport).listModels({});
for (const model of models) console.log(model.name);
const messages = [{ role: "user", content: "Who keeps the light?" }];
const request = { model: "tuned-int8", input: { case: "chat" as const, value: { messages } } };
for await (const { event } of createClient(InferenceService, transport).chatStream({ request })) {
  if (event.case === "delta") process.stdout.write(event.value.text);
}
