{{- define "tarbet-jobs.selector" -}}
app.kubernetes.io/name: tarbet-jobs
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tarbet-jobs.labels" -}}
{{ include "tarbet-jobs.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* tarbet's configuration: the remotes as files or sites, then whatever else was set. */ -}}
{{- define "tarbet-jobs.settings" -}}
{{- $remotes := list -}}
{{- range .Values.remotes -}}
{{- if .site -}}
{{- $remotes = append $remotes (dict "name" .name "site" .site "site_keys" (.siteKeys | default list)) -}}
{{- else -}}
{{- $file := printf "/etc/tarbet/remotes/%s/%s" .name (.kubeconfigKey | default "kubeconfig") -}}
{{- $remotes = append $remotes (dict "name" .name "kubeconfig" $file) -}}
{{- end -}}
{{- end -}}
{{- $election := dict "enabled" (gt (int .Values.replicas) 1) "id" "b548bb9d.redhat.com" -}}
{{- $jobs := dict "remotes" $remotes "remote_events" .Values.remoteEvents "leader_election" $election -}}
{{- toYaml (dict "jobs" (mergeOverwrite $jobs .Values.settings)) -}}
{{- end }}
