// A provider that brings Machines to a Kubernetes version through the API of those who run their hosts.
//
// +groupName=hosts.example
// +versionName=v1
package main

//go:generate sh -c "go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.20.1 object crd output:crd:stdout paths=. >crds.yaml"

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Settings are this provider's own fields. An operator sets them in the template.
type Settings struct {
	// URL of the API that changes hosts.
	// +kubebuilder:validation:Pattern=`^https?://`
	URL string `json:"url"`
}

// HostUpgradeTemplate is what Refit makes HostUpgrades from.
// +kubebuilder:object:root=true
type HostUpgradeTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              HostUpgradeTemplateSpec `json:"spec"`
}

type HostUpgradeTemplateSpec struct {
	Template HostUpgradeTemplateResource `json:"template"`
}

type HostUpgradeTemplateResource struct {
	Spec Settings `json:"spec"`
}

// HostUpgrade is one upgrade of one host.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="refit.dev/v1alpha1=v1"
// +kubebuilder:printcolumn:name=Machine,type=string,JSONPath=`.spec.machineRef.name`
// +kubebuilder:printcolumn:name=Gate,type=string,JSONPath=`.spec.gate`
// +kubebuilder:printcolumn:name=Passed,type=string,JSONPath=`.status.passed`
// +kubebuilder:printcolumn:name=Ready,type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name=Failure,type=string,JSONPath=`.status.failureMessage`
type HostUpgrade struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              HostUpgradeSpec `json:"spec"`
	// +optional
	Status ProviderStatus `json:"status,omitempty"`
}

// +kubebuilder:object:generate=true
type HostUpgradeSpec struct {
	ProviderSpec `json:",inline"`
	Settings     `json:",inline"`
}

// HostUpgradeList is a list of HostUpgrades.
// +kubebuilder:object:root=true
type HostUpgradeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HostUpgrade `json:"items"`
}

// AddToScheme registers the kind that the provider reads and writes.
func AddToScheme(scheme *runtime.Scheme) {
	version := schema.GroupVersion{Group: "hosts.example", Version: "v1"}
	scheme.AddKnownTypes(version, &HostUpgrade{}, &HostUpgradeList{})
	metav1.AddToGroupVersion(scheme, version)
}
