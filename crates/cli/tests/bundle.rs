//! Runs `refit bundle` as a user does.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

struct Directory(tempfile::TempDir);

impl Directory {
    /// A directory with a key, a tarball and a bundle spec.
    fn new() -> Self {
        let directory = Self(tempfile::tempdir().unwrap());
        fs::write(directory.path().join("kubernetes-node.tar.gz"), "binaries").unwrap();
        let spec = "kubernetesVersion: v1.35.0\narchitecture: amd64\npackages:\n- path: kubernetes-node.tar.gz\n";
        fs::write(directory.path().join("bundle.yaml"), spec).unwrap();
        assert_eq!(directory.refit(&["keygen", "release"]).status.code(), Some(0));
        directory
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn refit(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_refit"))
            .current_dir(self.path())
            .arg("bundle")
            .args(args)
            .env("KUBECONFIG", "/nonexistent")
            .output()
            .unwrap()
    }

    fn build(&self, output: &str) -> Output {
        self.refit(&["build", "--from", "bundle.yaml", "--key", "release.key", output])
    }

    fn verify(&self, more: &[&str]) -> (Option<i32>, String) {
        let mut args = vec!["verify", "--public-key", "release.pub"];
        args.extend(more);
        let output = self.refit(&args);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }
}

#[test]
fn a_bundle_is_built_looked_at_and_verified() {
    let directory = Directory::new();
    let mode = fs::metadata(directory.path().join("release.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let built = directory.build("b");
    assert!(built.status.success(), "{built:?}");
    let text = String::from_utf8(built.stdout).unwrap();
    assert!(
        text.starts_with("b: Kubernetes v1.35.0 for any on amd64: 1 file, 0 images, 8 B\n"),
        "{text}"
    );
    let shown = String::from_utf8(directory.refit(&["inspect", "b"]).stdout).unwrap();
    assert!(
        shown.contains("packages/kubernetes-node.tar.gz  kubernetes-node  1.35.0   8 B"),
        "{shown}"
    );
    let json = directory.refit(&["inspect", "-o", "json", "b"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["manifest"]["kubernetesVersion"], "v1.35.0");
    let (code, text) = directory.verify(&["b"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("good: ") && text.contains("signed with      release.pub"), "{text}");
    let digest = json["manifestSha256"].as_str().unwrap();
    let (code, text) = directory.verify(&["-o", "json", "--manifest-sha256", digest, "b"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["verified"], true);
}

#[test]
fn the_exit_code_of_verify_shows_the_problem() {
    let directory = Directory::new();
    assert!(directory.build("b").status.success());
    assert_eq!(directory.verify(&["--kubernetes-version", "v1.36.0", "b"]).0, Some(5));
    assert_eq!(directory.verify(&["--architecture", "arm64", "b"]).0, Some(5));
    assert_eq!(
        directory.verify(&["--os-family", "debian", "b"]).0,
        Some(0),
        "for any is for debian"
    );
    assert_eq!(directory.verify(&["absent"]).0, Some(4));
    assert_eq!(directory.verify(&["http://127.0.0.1:1/b"]).0, Some(1));
    assert_eq!(directory.verify(&[]).0, Some(2));
    assert!(directory.refit(&["keygen", "other"]).status.success());
    let other = directory.refit(&["verify", "--public-key", "other.pub", "b"]);
    assert_eq!(other.status.code(), Some(3), "{other:?}");
    let blobs = directory.path().join("b/blobs/sha256");
    for entry in fs::read_dir(&blobs).unwrap() {
        let path = entry.unwrap().path();
        if fs::read(&path).unwrap() == b"binaries" {
            fs::write(path, "binaryes").unwrap();
        }
    }
    let (code, text) = directory.verify(&["b"]);
    assert_eq!(code, Some(4));
    assert!(
        text.contains(
            "packages/kubernetes-node.tar.gz does not match the signed manifest: expected sha256 "
        ),
        "{text}"
    );
}

#[test]
fn flags_equal_the_spec_file_and_encrypted_keys_need_a_password() {
    let directory = Directory::new();
    fs::write(directory.path().join("pass"), "open sesame\n").unwrap();
    let made = directory.refit(&["keygen", "--password-file", "pass", "locked"]);
    assert!(made.status.success(), "{made:?}");
    let flags = [
        "build",
        "--kubernetes-version",
        "v1.35.0",
        "--architecture",
        "amd64",
        "--package",
        "kubernetes-node.tar.gz",
        "-o",
        "json",
        "--key",
        "locked.key",
    ];
    let without = directory.refit(&[&flags[..], &["b"]].concat());
    assert_eq!(without.status.code(), Some(1), "{without:?}");
    assert!(String::from_utf8(without.stderr).unwrap().contains("--password-file"));
    assert!(!directory.path().join("b").exists());
    let with = directory.refit(&[&flags[..], &["--password-file", "pass", "b"]].concat());
    assert!(with.status.success(), "{with:?}");
    let by_flags: Value = serde_json::from_slice(&with.stdout).unwrap();
    let by_file = directory.refit(&[
        "build",
        "--from",
        "bundle.yaml",
        "--key",
        "release.key",
        "-o",
        "json",
        "c",
    ]);
    let by_file: Value = serde_json::from_slice(&by_file.stdout).unwrap();
    assert_eq!(by_flags["manifestSha256"], by_file["manifestSha256"]);
    assert!(directory.refit(&["verify", "--public-key", "locked.pub", "b"]).status.success());
}
