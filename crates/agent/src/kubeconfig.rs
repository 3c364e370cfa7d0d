//! The kubeconfig with the host's identity.
//!
//! It is parsed by way of JSON: `Kubeconfig::read_from` compiles a copy of the YAML parser for each of its types, which
//! makes the program larger by a twentieth.

use std::{fs, path::Path};

use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use refit_runtime::process::StartError;
use serde_json::Value;

/// Reads a kubeconfig as kubectl does: documents are merged, and the names of files are relative to its directory. An
/// error shows nothing of its content.
pub fn read(path: &Path) -> Result<Kubeconfig, StartError> {
    let wrong = |reason: String| refused(path, reason);
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let text = text.trim_start_matches('\u{feff}');
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
        let place = error.location().map(|at| format!(", from line {} on", at.line()));
        wrong(format!("not YAML{}", place.unwrap_or_default()))
    })?;
    let mut kubeconfig = Kubeconfig::default();
    for document in documents {
        let next = serde_json::from_value(document).map_err(|_| {
            let shown = path.display();
            wrong(format!(
                "a field is missing or has a value of another type; find it with \
                 `kubectl --kubeconfig {shown} config view`"
            ))
        })?;
        kubeconfig = kubeconfig.merge(next).map_err(|error| wrong(error.to_string()))?;
    }
    let directory = path.parent().unwrap_or(Path::new(""));
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut()) {
        // As for a shell, a name without a directory is one of a program in PATH.
        let program = user.exec.as_mut().and_then(|exec| exec.command.as_mut());
        if let Some(program) = program.filter(|program| program.contains('/')) {
            *program = directory.join(&*program).to_string_lossy().into_owned();
        }
    }
    for file in files(&mut kubeconfig) {
        *file = directory.join(&*file).to_string_lossy().into_owned();
    }
    Ok(kubeconfig)
}

/// The client configuration of a kubeconfig's current context.
pub async fn config(path: &Path) -> Result<Config, StartError> {
    Config::from_custom_kubeconfig(read(path)?, &KubeConfigOptions::default())
        .await
        .map_err(|error| refused(path, error.to_string()))
}

/// The files that a kubeconfig names: certificates, keys and tokens.
pub fn files(kubeconfig: &mut Kubeconfig) -> impl Iterator<Item = &mut String> {
    let users = kubeconfig.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut());
    let of_users = users.flat_map(|user| {
        [&mut user.client_certificate, &mut user.client_key, &mut user.token_file]
    });
    let clusters = kubeconfig.clusters.iter_mut().filter_map(|cluster| cluster.cluster.as_mut());
    let of_clusters = clusters.map(|cluster| &mut cluster.certificate_authority);
    of_users.chain(of_clusters).filter_map(Option::as_mut)
}

fn refused(path: &Path, reason: String) -> StartError {
    StartError::Kubeconfig { path: path.display().to_string(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}
---
apiVersion: v1
kind: Config
preferences: {}
clusters:
- name: k
  cluster: {server: "https://10.0.0.1:6443", certificate-authority: pki/ca.crt}
users:
- name: u
  user: {client-certificate: current.pem, client-key: /var/lib/kubelet/pki/current.pem}
- name: e
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: ./bin/login, interactiveMode: Never}
"#;

    fn reading(text: &str) -> Result<Kubeconfig, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubelet.conf");
        fs::write(&path, text).unwrap();
        read(&path).map_err(|error| error.to_string()).map(|mut kubeconfig| {
            let root = format!("{}/", directory.path().display());
            for file in files(&mut kubeconfig) {
                *file = file.replacen(&root, "HERE/", 1);
            }
            kubeconfig
        })
    }

    #[test]
    fn the_agent_reads_a_kubeconfig_as_kubectl_does() {
        let marked = format!("\u{feff}{KUBECONFIG}");
        let mut kubeconfig = reading(&marked).unwrap();
        assert_eq!(kubeconfig.current_context.as_deref(), Some("c"));
        let files: Vec<&str> = files(&mut kubeconfig).map(|file| file.as_str()).collect();
        let expected = ["HERE/current.pem", "/var/lib/kubelet/pki/current.pem", "HERE/pki/ca.crt"];
        assert_eq!(files, expected);
        let users = kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
        let mut programs = users.filter_map(|user| user.exec.as_ref()?.command.as_deref());
        assert!(programs.next().unwrap().ends_with("/./bin/login"));
    }

    #[test]
    fn the_agent_shows_nothing_of_a_kubeconfig_that_it_cannot_read() {
        let cases = [
            ("{s3cret", "not YAML, from line 1 on"),
            ("s3cret-token", "a field is missing or has a value of another type"),
            ("users:\n- name: u\n  user: s3cret\n", "kubectl --kubeconfig"),
        ];
        for (text, expected) in cases {
            let error = reading(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
        }
    }

    #[tokio::test]
    async fn the_agent_connects_to_the_server_of_the_current_context() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubelet.conf");
        let text = "{clusters: [{name: k, cluster: {server: 'https://10.0.0.1:6443'}}], \
                    users: [{name: u, user: {token: t}}], current-context: c, \
                    contexts: [{name: c, context: {cluster: k, user: u}}]}";
        fs::write(&path, text).unwrap();
        let config = config(&path).await.unwrap();
        assert_eq!(config.cluster_url, "https://10.0.0.1:6443/");
        fs::remove_file(&path).unwrap();
        let error = super::config(&path).await.unwrap_err().to_string();
        assert!(error.contains("kubelet.conf: No such file"), "{error}");
    }
}
