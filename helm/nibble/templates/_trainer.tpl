{{- /* training.mode jobs: the template of trainers' Jobs, and on which nodes server and trainers run. */ -}}

{{- /* The affinity of the server's pod: that of values.yaml, and a preference for the node of running trainers. Only
       one node can mount a claim that is ReadWriteOnce, so on another node a new server would wait for the trainers of
       the old one. The rule is only a preference, because the trainers of a lost node do not go away: a required rule
       would keep the new server from starting on another node. */ -}}
{{- define "nibble.serverAffinity" -}}
{{- $selector := dict "matchLabels" (include "nibble.trainerSelector" . | fromYaml) }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $selector }}
{{- $rule := dict "weight" 100 "podAffinityTerm" $term }}
{{- $preferred := "preferredDuringSchedulingIgnoredDuringExecution" }}
{{- include "nibble.withPodAffinity" (list .Values.affinity $preferred $rule) }}
{{- end }}

{{- /* The affinity of trainers: that of values.yaml, and the node of the server, if only that node can mount the
       volume. */ -}}
{{- define "nibble.trainerAffinity" -}}
{{- $selector := dict "matchLabels" (include "nibble.selector" . | fromYaml) }}
{{- $rule := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $selector }}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" }}
{{- include "nibble.withPodAffinity" (list .Values.training.affinity $required $rule) }}
{{- end }}

{{- /* An affinity with one more rule. The argument is a list: the affinity, the key in its podAffinity, and the
       rule. */ -}}
{{- define "nibble.withPodAffinity" -}}
{{- $affinity := deepCopy (index . 0) }}
{{- $key := index . 1 }}
{{- $pods := default dict $affinity.podAffinity }}
{{- $_ := set $pods $key (append (default list (get $pods $key)) (index . 2)) }}
{{- $_ := set $affinity "podAffinity" $pods }}
{{- toYaml $affinity }}
{{- end }}

{{- /* Threads of the kernels: those of server.threads, or the CPU limit rounded up, as resourceFieldRef does. */ -}}
{{- define "nibble.threads" -}}
{{- if .Values.server.threads }}
{{- .Values.server.threads }}
{{- else }}
{{- ceil (divf (include "nibble.millicpu" .Values.resources.limits.cpu | float64) 1000) | int }}
{{- end }}
{{- end }}

{{- define "nibble.trainerThreads" -}}
{{- default (include "nibble.threads" . | int) (int .Values.training.threads) }}
{{- end }}

{{- define "nibble.trainerLabels" -}}
{{ include "nibble.trainerSelector" . }}
app.kubernetes.io/part-of: nibble
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The Job of a trainer without what nibbled adds for each attempt (server/jobs/kubernetes_job.h). The argument is a
       list: the chart's context, and the device. */ -}}
{{- define "nibble.trainerJob" -}}
{{- $top := index . 0 }}
{{- $cuda := eq (index . 1) "cuda" }}
{{- $v := $top.Values }}
{{- $training := $v.training }}
{{- $runtimeClass := $training.runtimeClassName }}
{{- $nodes := $training.nodeSelector }}
{{- $tolerations := $training.tolerations }}
{{- if $cuda }}
{{- $runtimeClass = default $runtimeClass $training.gpu.runtimeClassName }}
{{- $nodes = merge dict $training.gpu.nodeSelector $nodes }}
{{- $tolerations = prepend $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
metadata:
  labels:
    {{- include "nibble.trainerLabels" $top | nindent 4 }}
    {{- with $training.queuePriorityClass }}
    kueue.x-k8s.io/priority-class: {{ . }}
    {{- end }}
spec:
  ttlSecondsAfterFinished: {{ $training.ttlSecondsAfterFinished }}
  template:
    metadata:
      labels: {{- include "nibble.trainerLabels" $top | nindent 8 }}
      {{- with $training.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "nibble.fullname" $top }}-trainer
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ $training.terminationGracePeriodSeconds }}
      securityContext: {{- include "nibble.podSecurity" $top | nindent 8 }}
      {{- with $v.imagePullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      {{- with $training.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $runtimeClass }}
      runtimeClassName: {{ . }}
      {{- end }}
      {{- with $nodes }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if not (include "nibble.databaseClaimName" $top) }}
      affinity: {{- include "nibble.trainerAffinity" $top | nindent 8 }}
      {{- else if $training.affinity }}
      affinity: {{- toYaml $training.affinity | nindent 8 }}
      {{- end }}
      {{- with $tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: trainer
          image: {{ include "nibble.imageName" (list $top (get $training.images (index . 1))) }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          command: [/usr/local/bin/nibble-trainer]
          resources:
            requests: {memory: {{ $training.memory }}, ephemeral-storage: {{ $training.ephemeralStorage }}}
            limits:
              # nibbled requests one CPU per thread.
              cpu: {{ include "nibble.trainerThreads" $top | quote }}
              memory: {{ $training.memory }}
              ephemeral-storage: {{ $training.ephemeralStorage }}
              {{- if $cuda }}
              {{ $training.gpu.resourceName }}: {{ $training.gpu.count | quote }}
              {{- end }}
          securityContext: {{- include "nibble.containerSecurity" $top | nindent 12 }}
          volumeMounts:
            # As in the server: attempts name their files by absolute paths.
            - {name: state, mountPath: /var/lib/nibble}
            - {name: tmp, mountPath: /tmp}
            - {name: shm, mountPath: /dev/shm}
      volumes:
        - name: state
          persistentVolumeClaim: {claimName: {{ include "nibble.claimName" $top }}}
        - name: tmp
          emptyDir: {sizeLimit: {{ $v.tmpSize }}}
        - name: shm
          emptyDir: {medium: Memory, sizeLimit: {{ $v.shmSize }}}
{{- end }}

{{- /* The file for --trainer_templates. */ -}}
{{- define "nibble.trainerTemplates" -}}
{{- $templates := dict }}
{{- range .Values.training.devices }}
{{- $_ := set $templates . (include "nibble.trainerJob" (list $ .) | fromYaml) }}
{{- end }}
{{- toPrettyJson $templates }}
{{- end }}
