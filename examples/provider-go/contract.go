package main

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// This file has the fields of Refit's contract v1alpha1. Copy it as it is into a provider of your own.

// Gate is how far a provider may go.
// +kubebuilder:validation:Enum=Closed;Stage;Upgrade;Disrupt
type Gate string

const (
	GateStage   Gate = "Stage"
	GateUpgrade Gate = "Upgrade"
	GateDisrupt Gate = "Disrupt"
)

// gateOrder has the gates in the order in which they open. Closed and an empty gate come before all.
var gateOrder = map[Gate]int{GateStage: 1, GateUpgrade: 2, GateDisrupt: 3}

// StageAbort is the stage of an update that is to stop at the next safe point.
const StageAbort = "Abort"

// ProviderSpec is what Refit asks for. The provider does not write it.
// +kubebuilder:object:generate=true
type ProviderSpec struct {
	// The Machine, in the namespace of the object.
	MachineRef MachineRef `json:"machineRef"`
	// The Node of the Machine.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// What the Machine must reach.
	Goal ProviderGoal `json:"goal"`
	// Whether the update continues, or is to stop at the next safe point.
	// +kubebuilder:default=Ongoing
	// +kubebuilder:validation:Enum=Ongoing;Abort
	// +optional
	Stage string `json:"stage,omitempty"`
	// How far the provider may go. It only moves forward.
	// +kubebuilder:default=Closed
	// +optional
	Gate Gate `json:"gate,omitempty"`
}

// MachineRef names one Machine: a later one of the same name has another uid.
type MachineRef struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// ProviderGoal is what a Machine must reach.
// +kubebuilder:object:generate=true
type ProviderGoal struct {
	// Kubernetes version, vX.Y.Z.
	// +optional
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`
	// Role for kubeadm: the first control plane machine of a version runs `kubeadm upgrade apply`, all others
	// `kubeadm upgrade node`.
	// +kubebuilder:validation:Enum=FirstControlPlane;ControlPlane;Worker
	// +optional
	Role string `json:"role,omitempty"`
	// Instead of a version, one of channel, revision and localPath.
	// +optional
	Option map[string]string `json:"option,omitempty"`
	// sha256 of the values that the Updater claims of the Machine's objects.
	// +optional
	Hash string `json:"hash,omitempty"`
}

// ProviderStatus is what the provider reports.
// +kubebuilder:object:generate=true
type ProviderStatus struct {
	// The generation that this status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// With stage Ongoing: the Machine has reached the goal. With stage Abort: the provider has stopped.
	// +kubebuilder:default=false
	Ready bool `json:"ready"`
	// The gate up to which everything is done.
	Passed Gate `json:"passed,omitempty"`
	// From now on the update cannot be stopped or undone.
	// +kubebuilder:default=false
	PastNoReturn bool `json:"pastNoReturn"`
	// +optional
	Progress ProviderProgress `json:"progress,omitzero"`
	// What an update that ended without success has left on the machine, each entry a sentence.
	LeftBehind []string `json:"leftBehind,omitempty"`
	Failure    `json:",inline"`
	// Conditions of the provider's own.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Failure is why an update does not get on.
type Failure struct {
	// A CamelCase word; empty if nothing is wrong.
	Reason string `json:"failureReason,omitempty"`
	// A sentence with the remedy, for an operator.
	Message string `json:"failureMessage,omitempty"`
	// Whether the provider tries again by itself. If not, the failure ends the update.
	// +kubebuilder:default=false
	Retriable bool `json:"retriable"`
}

func (f Failure) Error() string { return f.Message }

// ProviderProgress is how far an update is.
type ProviderProgress struct {
	// Completed share, 0 to 100.
	Percent int32 `json:"percent,omitempty"`
	// What it is doing, for an operator.
	Message string `json:"message,omitempty"`
}
