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
