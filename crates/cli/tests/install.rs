//! Runs `refit install` as a user does.

use std::process::{Command, Output};

fn refit(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_refit"))
        .args(args)
        .env("KUBECONFIG", "/nonexistent")
        .output()
        .unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = refit(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the kind of each document, in order.
fn kinds(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("kind: ")).collect()
}

#[test]
fn without_apply_all_manifests_are_printed() {
    let text = printed(&["install"]);
    assert_eq!(
        kinds(&text),
        [
            "Namespace",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "Service",
            "Service",
            "NetworkPolicy",
            "PodDisruptionBudget",
            "Deployment",
            "ExtensionConfig",
        ]
    );
    assert_eq!(text.matches("---\n").count(), kinds(&text).len());
}

#[test]
fn kubeconfigs_may_be_read_in_chosen_namespaces_only() {
    let text = printed(&["install", "--only", "rbac", "--kubeconfigs-in", "edge,fleet"]);
    assert_eq!(kinds(&text).iter().filter(|kind| **kind == "ClusterRoleBinding").count(), 1);
    for namespace in ["edge", "fleet"] {
        let binding = format!(
            "kind: RoleBinding\nmetadata:\n  namespace: {namespace}\n  name: refit-kubeconfigs\n"
        );
        assert!(text.contains(&binding), "{text}");
    }
    for wrong in ["Edge", "-edge", "a b", ""] {
        let output = refit(&["install", &format!("--kubeconfigs-in={wrong}")]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("expected the name of a namespace"), "{error}");
    }
}

#[test]
fn parts_image_and_replicas_are_chosen() {
    let image = "registry.example/refit:1";
    let text = printed(&["install", "--only", "agent", "--image", image]);
    let policy = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
    let wanted = ["Namespace", policy[0], policy[1], "DaemonSet"];
    assert_eq!(kinds(&text), wanted);
    assert!(text.contains("image: registry.example/refit:1\n"), "{text}");
    let text = printed(&["install", "--only", "controller", "--replicas", "3"]);
    assert!(text.contains("\n  replicas: 3\n"), "{text}");
}

#[test]
fn the_commands_for_the_managers_are_printed_and_valid() {
    let script = printed(&["install", "--for", "managers"]);
    let checked = Command::new("sh").args(["-n", "-c", &script]).status().unwrap();
    assert!(checked.success());
    for wanted in ["--runtime-extension-client-cert-file=", "capi-controller-manager"] {
        assert!(script.contains(wanted), "{script}");
    }
    let output = refit(&["install", "--for", "kubeadm-config"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--agent-url"), "{error}");
}

#[test]
fn an_invalid_request_is_reported_and_prints_nothing() {
    for (args, expected) in [
        (["install", "--image", "a b"], "invalid --image"),
        (["install", "--replicas", "0"], "0 is not in 1..=9"),
        (["install", "--apply", "-v"], "/nonexistent"),
    ] {
        let output = refit(&args);
        assert!(!output.status.success(), "{args:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected), "{error}");
    }
}
