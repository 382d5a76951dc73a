{{/*
The parts of an object that Kubernetes does not change in place (docs/adr/0003). An annotation of the object keeps their
digests; an upgrade that would change one fails with a sentence. CHART.immutable makes these digests.
*/}}

{{/*
The value of the annotation bireme/immutable: JSON {part: digest}.
Arguments: parts (a dict {name for users: content}).
*/}}
{{- define "common.immutable.digests" -}}
{{- $digests := dict }}
{{- range $part, $content := required "common.immutable.digests needs parts" .parts }}
{{- $_ := set $digests $part ($content | toJson | sha256sum | trunc 12) }}
{{- end }}
{{- toJson $digests }}
{{- end }}

{{/*
The same for a Job, whose parts are image, env, volumes, ...
Arguments: spec (the Job's spec less completions, parallelism and the other fields that can change in place), further
(a dict of parts that are not in it; optional).
*/}}
{{- define "common.immutable.job" -}}
{{- $spec := required "common.immutable.job needs spec" .spec }}
{{- $pod := $spec.template.spec }}
{{- $parts := merge (dict "pod labels and annotations" $spec.template.metadata) (omit $spec "template") (omit $pod "containers" "securityContext") }}
{{- $_ := set $parts "podSecurityContext" $pod.securityContext }}
{{- $_ := set $parts "further containers" (rest $pod.containers) }}
{{- include "common.immutable.digests" (dict "parts" (merge (dict) (.further | default dict) $parts (first $pod.containers))) }}
{{- end }}

{{/*
A sentence if the live object of that name differs in an immutable part. Nothing if it does not, or if Helm renders
without a cluster (helm template, GitOps).
Arguments: root, apiVersion, kind, name, digests (those of the parts), advice (what to do instead).
*/}}
{{- define "common.immutable.sentence" -}}
{{- $root := required "common.immutable.sentence needs root" .root }}
{{- $live := lookup .apiVersion .kind $root.Release.Namespace .name }}
{{- $kept := dig "metadata" "annotations" "bireme/immutable" "" $live }}
{{- if $kept }}
{{- $old := fromJson $kept }}
{{- $new := fromJson .digests }}
{{- $changed := list }}
{{- range $part := concat (keys $old) (keys $new) | uniq | sortAlpha }}
{{- if ne (get $old $part) (get $new $part) }}{{ $changed = append $changed $part }}{{ end }}
{{- end }}
{{- if $changed }}
{{- printf "this upgrade changes %s of the %s %s, which Kubernetes does not change in place: %s" (join ", " $changed) .kind .name .advice }}
{{- end }}
{{- end }}
{{- end }}

{{/*
"true" for a live Job that is finished or suspended and has no pod left, not even a terminating one.
Arguments: job.
*/}}
{{- define "common.immutable.isStopped" -}}
{{- $job := required "common.immutable.isStopped needs job" .job }}
{{- $pods := add (dig "status" "active" 0 $job | int64) (dig "status" "terminating" 0 $job | int64) }}
{{- $ended := dig "spec" "suspend" false $job }}
{{- range dig "status" "conditions" list $job }}
{{- if and (has .type (list "Complete" "Failed")) (eq .status "True") }}{{ $ended = true }}{{ end }}
{{- end }}
{{- if and $ended (eq $pods 0) }}true{{ end }}
{{- end }}
