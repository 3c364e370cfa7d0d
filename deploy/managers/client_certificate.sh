#!/bin/sh
# Gives Cluster API's managers the client certificate with which they call Refit's hooks. The namespaces and
# Deployments are those of clusterctl. docs/install.md describes when to run it again.
set -eu

# A pod cannot mount a Secret of another namespace, so each manager gets a copy, without the authority's key.
template='apiVersion: v1
kind: Secret
metadata:
  name: refit-hook-client
  labels:
    app.kubernetes.io/name: refit
type: kubernetes.io/tls
data:
  tls.crt: {{index .data "tls.crt"}}
  tls.key: {{index .data "tls.key"}}
'
for namespace in capi-system capi-kubeadm-control-plane-system; do
  kubectl -n refit-system get secret refit-hook-client -o go-template="$template" |
    kubectl -n "$namespace" apply --server-side --field-manager=refit -f -
done

# The managers restart with the certificate, and read it again when the copy changes.
patch='[
  {"op": "add", "path": "/spec/template/spec/volumes/-", "value":
    {"name": "refit-hook-client", "secret": {"secretName": "refit-hook-client"}}},
  {"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-", "value":
    {"name": "refit-hook-client", "mountPath": "/etc/refit-hook-client", "readOnly": true}},
  {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value":
    "--runtime-extension-client-cert-file=/etc/refit-hook-client/tls.crt"},
  {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value":
    "--runtime-extension-client-key-file=/etc/refit-hook-client/tls.key"}
]'
has_certificate() {
  kubectl -n "$1" get deployment "$2" -o jsonpath='{.spec.template.spec.volumes[*].name}' | grep -qw refit-hook-client
}
patch_manager() {
  has_certificate "$1" "$2" || kubectl -n "$1" patch deployment "$2" --type=json --patch "$patch"
}
patch_manager capi-system capi-controller-manager
patch_manager capi-kubeadm-control-plane-system capi-kubeadm-control-plane-controller-manager
