{{- /* Names, labels, images, security settings and Secrets that several templates use. */ -}}
{{- define "nibble.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* At most 52 characters, so that names made of it and a suffix have at most 63; the longest suffix is -last-exit.
       Only the names of dashboards may be longer, and are cut. */ -}}
{{- define "nibble.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "nibble.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "nibble.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Selects the pods; immutable once deployed. */ -}}
{{- define "nibble.selector" -}}
app.kubernetes.io/name: {{ include "nibble.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{- /* Selects the pods of trainers. */ -}}
{{- define "nibble.trainerSelector" -}}
{{- include "nibble.selector" . | replace "component: server" "component: trainer" }}
{{- end }}

{{- /* Selects the pod of `helm test`. */ -}}
{{- define "nibble.testSelector" -}}
{{- include "nibble.selector" . | replace "component: server" "component: test" }}
{{- end }}

{{- define "nibble.labels" -}}
{{ include "nibble.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: nibble
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "nibble.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "nibble.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: required, because serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "nibble.claimName" -}}
{{- default (printf "%s-state" (include "nibble.fullname" .)) .Values.persistence.existingClaim }}
{{- end }}

{{- /* The claim of the database; empty: the database is in the state directory. */ -}}
{{- define "nibble.databaseClaimName" -}}
{{- if and .Values.persistence.enabled (eq .Values.persistence.accessMode "ReadWriteMany") }}
{{- default (printf "%s-database" (include "nibble.fullname" .)) .Values.persistence.database.existingClaim }}
{{- end }}
{{- end }}

{{- /* The Service with the metrics port: never one that is reachable from outside. */ -}}
{{- define "nibble.metricsService" -}}
{{- include "nibble.fullname" . }}{{ ternary "" "-metrics" (eq .Values.service.type "ClusterIP") }}
{{- end }}

{{- /* The Service for trainers' reports: that of the API, unless clients outside the cluster reach that one. */ -}}
{{- define "nibble.reportService" -}}
{{- include "nibble.fullname" . }}{{ ternary "" "-reports" (eq .Values.service.type "ClusterIP") }}
{{- end }}

{{- /* The server's image. */ -}}
{{- define "nibble.image" -}}
{{- $image := ternary .Values.training.images.cpu .Values.image (eq .Values.training.mode "inPod") }}
{{- include "nibble.imageName" (list . $image) }}
{{- end }}

{{- /* The argument is a list: the chart's context, and an image of values.yaml. */ -}}
{{- define "nibble.imageName" -}}
{{- $top := index . 0 }}
{{- $image := index . 1 }}
{{- $registry := default $top.Values.image.registry $top.Values.global.imageRegistry }}
{{- $version := ternary (printf "@%s" $image.digest) (printf ":%s" (default $top.Chart.AppVersion $image.tag)) (ne $image.digest "") }}
{{- printf "%s%s%s" (ternary (printf "%s/" $registry) "" (ne $registry "")) $image.repository $version }}
{{- end }}

{{- /* Bytes of a quantity in the form that values.schema.json accepts: 512Mi. */ -}}
{{- define "nibble.bytes" -}}
{{- $factors := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mul (regexFind "^[0-9]+" .) (get $factors (regexFind "[A-Z]i$" .)) }}
{{- end }}

{{- /* Thousandths of a CPU, from a quantity in the form that values.schema.json accepts: 2, "500m", "0.5". */ -}}
{{- define "nibble.millicpu" -}}
{{- $cpu := toString . }}
{{- if hasSuffix "m" $cpu }}{{ trimSuffix "m" $cpu }}{{ else }}{{ round (mulf (float64 $cpu) 1000) 0 | int64 }}{{ end }}
{{- end }}

{{- /* Milliseconds of a duration in the form that values.schema.json accepts: 30s. */ -}}
{{- define "nibble.milliseconds" -}}
{{- $factors := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 }}
{{- mul (regexFind "^[0-9]+" .) (get $factors (regexFind "[a-z]+$" .)) }}
{{- end }}

{{- /* Requests or limits. The argument is a list: the chart's context, and the requests or limits of values.yaml.
       Without persistence, adds the disk of the state. */ -}}
{{- define "nibble.resources" -}}
{{- $v := (index . 0).Values }}
{{- $resources := deepCopy (index . 1) }}
{{- if not $v.persistence.enabled }}
{{- $disk := add (include "nibble.bytes" $v.persistence.size) (include "nibble.bytes" (get $resources "ephemeral-storage")) }}
{{- $_ := set $resources "ephemeral-storage" (toString $disk) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- /* The restricted profile of the Pod Security Standards. */ -}}
{{- define "nibble.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "nibble.containerSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
privileged: false
capabilities:
  drop: [ALL]
{{- end }}

{{- /* The Secrets that nibbled reads: its arguments, mounts and volumes. */ -}}
{{- define "nibble.secretArgs" -}}
- --tls_cert=/etc/nibble/tls/{{ .Values.tls.certKey }}
- --tls_key=/etc/nibble/tls/{{ .Values.tls.keyKey }}
{{- if .Values.tls.clientCA.existingSecret }}
- --tls_client_ca=/etc/nibble/client-ca/{{ .Values.tls.clientCA.key }}
{{- if .Values.tls.clientCA.required }}
- --tls_require_client_cert
{{- end }}
{{- end }}
- --token_file=/etc/nibble/auth/{{ .Values.auth.key }}
{{- end }}

{{- define "nibble.secretMounts" -}}
- {name: tls, mountPath: /etc/nibble/tls, readOnly: true}
- {name: auth, mountPath: /etc/nibble/auth, readOnly: true}
{{- if .Values.tls.clientCA.existingSecret }}
- {name: client-ca, mountPath: /etc/nibble/client-ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "nibble.secretVolumes" -}}
- name: tls
  secret: {secretName: {{ .Values.tls.existingSecret }}, defaultMode: 0440}
- name: auth
  secret: {secretName: {{ .Values.auth.existingSecret }}, defaultMode: 0440}
{{- if .Values.tls.clientCA.existingSecret }}
- name: client-ca
  secret: {secretName: {{ .Values.tls.clientCA.existingSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}
