{{/* Names are those of the release; the registry's pods are NAME-registry-0, ... */}}
{{- define "udo.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "udo.labels" -}}
app.kubernetes.io/name: udo
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "udo.selector" -}}
app.kubernetes.io/name: udo
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "udo.token" -}}{{ .Values.token.secret | default (printf "%s-token" (include "udo.name" .)) }}{{- end }}

{{/* One address for each replica: who uses them goes from one that does not answer to the next. */}}
{{- define "udo.registries" -}}
{{- $urls := list }}
{{- range $i := until (int .Values.registry.replicas) }}
{{- $urls = append $urls (printf "https://%s-registry-%d.%s-registry.%s.svc:%d" (include "udo.name" $) $i (include "udo.name" $) $.Release.Namespace (int $.Values.registry.port)) }}
{{- end }}
{{- join "," $urls }}
{{- end }}

{{- define "udo.check" -}}
{{- if not .Values.tls.secret }}
{{- fail "tls.secret: expected the name of a Secret with ca.crt, tls.crt and tls.key; registry and nodes speak TLS only" }}
{{- end }}
{{- if and (gt (int .Values.registry.replicas) 1) (not .Values.registry.database.secret) }}
{{- fail (printf "registry.replicas is %d: several need registry.database.secret, a Secret with the URL of a PostgreSQL database" (int .Values.registry.replicas)) }}
{{- end }}
{{- end }}
