{{/* Peers expect this name of the Service and of the service account. */}}
{{- define "tarbet-mesh.name" -}}
federation-discovery-service-{{ required "mesh: the id of this mesh" .Values.mesh }}
{{- end }}

{{/* The policies that the controller writes select its pods by the first of these. */}}
{{- define "tarbet-mesh.labels" -}}
app.kubernetes.io/name: federation-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tarbet-mesh.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What is carried for other meshes is mutual TLS of their services: the pod's own proxy must not end it. */}}
{{- define "tarbet-mesh.annotations" -}}
{{- $ports := list }}
{{- range $mesh, $carry := .Values.config.carry }}
{{- $ports = append $ports (splitList ":" $carry.listen | last) }}
{{- end }}
{{- $ours := dict "checksum/config" (.Values.config | toJson | sha256sum) }}
{{- if $ports }}
{{- $_ := set $ours "traffic.sidecar.istio.io/excludeInboundPorts" ($ports | uniq | join ",") }}
{{- end }}
{{- if .Values.istio.spire.enabled }}
{{- $_ := set $ours "inject.istio.io/templates" (printf "sidecar,%s" .Values.istio.spire.templateName) }}
{{- end }}
{{- mergeOverwrite $ours .Values.podAnnotations | toYaml }}
{{- end }}
