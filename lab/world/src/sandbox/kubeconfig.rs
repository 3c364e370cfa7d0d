//! The kubeconfig for the APIs of a live sandbox.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use base64::Engine as _;
use refit_runtime::tls::KeyAndCert;
use serde::Serialize;

/// Address on which all APIs listen.
pub(super) const HOST: &str = "127.0.0.1";
/// File name of the kubeconfig.
pub(super) const FILE: &str = "kubeconfig";
/// Context of the management cluster.
pub(super) const MANAGEMENT: &str = "refit";

/// One API in the kubeconfig.
pub(super) struct Entry<'a> {
    /// Name of its context, cluster and user.
    pub(super) name: String,
    /// Port on the loopback interface.
    pub(super) port: u16,
    /// PEM of the certificate authority of the API server.
    pub(super) ca: &'a str,
    /// Client certificate and key of its administrator.
    pub(super) admin: &'a KeyAndCert,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    kind: &'static str,
    current_context: String,
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
}

#[derive(Serialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: String,
}

#[derive(Serialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate_data: String,
    client_key_data: String,
}

#[derive(Serialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Serialize)]
struct Context {
    cluster: String,
    user: String,
    namespace: &'static str,
}

/// URL of the API at a port.
pub(super) fn url(port: u16) -> String {
    format!("https://{HOST}:{port}")
}

/// Generates a kubeconfig; the first entry is the current context.
pub(super) fn text(entries: &[Entry<'_>]) -> String {
    let base64 = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    let user = |name: &str| format!("{name}-admin");
    let file = Kubeconfig {
        api_version: "v1",
        kind: "Config",
        current_context: entries.first().map(|entry| entry.name.clone()).unwrap_or_default(),
        clusters: entries
            .iter()
            .map(|entry| NamedCluster {
                name: entry.name.clone(),
                cluster: Cluster {
                    server: url(entry.port),
                    certificate_authority_data: base64(entry.ca),
                },
            })
            .collect(),
        users: entries
            .iter()
            .map(|entry| NamedUser {
                name: user(&entry.name),
                user: User {
                    client_certificate_data: base64(&entry.admin.cert_pem),
                    client_key_data: base64(&entry.admin.key_pem),
                },
            })
            .collect(),
        contexts: entries
            .iter()
            .map(|entry| NamedContext {
                name: entry.name.clone(),
                context: Context {
                    cluster: entry.name.clone(),
                    user: user(&entry.name),
                    namespace: "default",
                },
            })
            .collect(),
    };
    // One line per value, as other tools write it: scripts search for these lines.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&file, options).expect("a kubeconfig is plain data")
}

/// Writes the file with access for this user only. A reader sees either the old or the new file.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    // Writing to an existing file would keep its permissions, so it is removed first.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&temporary, path)
}

/// Contexts of workload clusters by key: the cluster's name, with its namespace if two clusters
/// have the same name.
pub(super) fn contexts(keys: &[&str]) -> BTreeMap<String, String> {
    let name = |key: &str| key.rsplit('/').next().unwrap_or(key).to_owned();
    keys.iter()
        .map(|key| {
            let short = name(key);
            let twice = keys.iter().filter(|other| name(other) == short).count() > 1;
            let context = if twice || short == MANAGEMENT { key.replace('/', "-") } else { short };
            ((*key).to_owned(), context)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(keys: &[&str]) -> Vec<String> {
        contexts(keys).into_values().collect()
    }

    #[test]
    fn a_context_has_its_clusters_name_unless_that_is_ambiguous() {
        assert_eq!(names(&["default/a", "default/b"]), ["a", "b"]);
        assert_eq!(names(&["x/a", "y/a", "y/b"]), ["x-a", "y-a", "b"]);
        assert_eq!(names(&["default/refit"]), ["default-refit"]);
    }

    #[test]
    fn kube_reads_the_kubeconfig_and_only_its_owner_may() {
        let admin = KeyAndCert { cert_pem: "cert".repeat(100), key_pem: "key".to_owned() };
        let entry = Entry { name: MANAGEMENT.to_owned(), port: 6443, ca: "ca", admin: &admin };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        write(&path, &text(&[entry])).unwrap();
        let written = fs::read_to_string(&path).unwrap();
        assert!(!written.contains(">-"), "{written}");
        let read = kube::config::Kubeconfig::read_from(&path).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("refit"));
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
