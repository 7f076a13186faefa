// Lists the models, and prints an answer while the server generates it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	v1 "nibble/gen/nibble/v1"
)

func main() {
	connection, err := grpc.NewClient("127.0.0.1:50051", grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	models, err := v1.NewModelServiceClient(connection).ListModels(context.Background(), &v1.ListModelsRequest{})
	check(err)
	for _, model := range models.Models {
		fmt.Println(model.Name)
	}
	chat := &v1.ChatInput{Messages: []*v1.ChatMessage{{Role: "user", Content: "Who keeps the light?"}}}
	request := &v1.GenerateRequest{Model: "tuned-int8", Input: &v1.GenerateRequest_Chat{Chat: chat}}
	stream, err := v1.NewInferenceServiceClient(connection).ChatStream(
		context.Background(), &v1.ChatStreamRequest{Request: request})
	check(err)
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		check(err)
		fmt.Print(reply.GetDelta().GetText())
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
