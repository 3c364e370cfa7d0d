//! The test bed of real components: builds them into the cache, starts and stops a bed with
//! `refit-testbed`, runs its whole matrix. `lab/testbed/README.md` lists the locations.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
};

use anyhow::{Context as _, bail};
use clap::Subcommand;
use serde::Serialize;

use crate::{
    cargo,
    go::{self, Module},
    kubectl,
};

/// The Go module of the managers.
const CLUSTER_API: &str = "sigs.k8s.io/cluster-api";
/// The Go module of the infrastructure provider with the in-memory backend.
const CLUSTER_API_TEST: &str = "sigs.k8s.io/cluster-api/test";
/// The Go module of the API server.
const KUBERNETES: &str = "k8s.io/kubernetes";
/// Our module with the API server and a kubelet.
const API_SERVER_MODULE: &str = "lab/testbed/go/apiserver";
/// Package of the core manager since v1.14. In earlier versions it is the module's root package.
const CORE: &str = "sigs.k8s.io/cluster-api/core";
/// Packages with the version variables of the API server; Cluster API's managers read the version.
const API_SERVER_STAMPED: [&str; 2] =
    ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];
/// The package with the version variables of the managers.
const MANAGER_STAMPED: [&str; 1] = ["sigs.k8s.io/cluster-api/version"];

/// Tasks of the test bed.
#[derive(Subcommand)]
pub(crate) enum TestbedTask {
    /// Build missing components into the cache and print their locations as JSON.
    Build {
        /// Build only these minor versions of Cluster API, such as v1.14; by default all of
        /// lab/testbed/go.
        #[arg(long, value_name = "LINE")]
        capi: Vec<String>,
    },
    /// Build missing components and start a bed that runs until Ctrl-C or `down`.
    Up {
        /// Use this minor version of Cluster API.
        #[arg(long, value_name = "LINE", default_value = "v1.14")]
        capi: String,
    },
    /// Stop the beds that `up` started.
    Down,
    /// Build everything and run the whole test matrix.
    All,
}

/// Locations of the components: the line of JSON that `build` prints.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Parts {
    kube_apiserver: Versioned,
    etcd: Part,
    kubectl: Part,
    hosts_provider: Part,
    kubelet: Part,
    cluster_api: BTreeMap<String, ClusterApi>,
}

#[derive(Serialize)]
struct Part {
    path: PathBuf,
}

#[derive(Serialize)]
struct Versioned {
    version: String,
    path: PathBuf,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterApi {
    version: String,
    infrastructure_version: String,
    directory: PathBuf,
}

/// Runs a task of the test bed.
pub(crate) fn run(root: &Path, task: &TestbedTask) -> anyhow::Result<ExitCode> {
    match task {
        TestbedTask::Build { capi } => {
            let line = build(root, capi)?;
            #[expect(clippy::print_stdout, reason = "the result of the task")]
            {
                println!("{line}");
            }
            Ok(ExitCode::SUCCESS)
        }
        TestbedTask::Up { capi } => {
            build(root, std::slice::from_ref(capi))?;
            bed(root, &["up", "--capi", capi])
        }
        TestbedTask::Down => bed(root, &["down"]),
        TestbedTask::All => {
            build(root, &[])?;
            all(root)
        }
    }
}

/// Replaces this process with the test bed's program by way of cargo, so that Ctrl-C reaches it and
/// no process in between dies first.
fn bed(root: &Path, args: &[&str]) -> anyhow::Result<ExitCode> {
    let run = ["run", "-p", "lab-testbed", "--"];
    let error = cargo::command(root).args(run).args(args).exec();
    Err(error).context("failed to run cargo")
}

/// Runs every flow for every minor version of Cluster API; the last line on stdout is the result.
#[expect(clippy::print_stdout, reason = "the output of the tests, and the result of the task")]
fn all(root: &Path) -> anyhow::Result<ExitCode> {
    let tests = ["test", "--workspace", "--no-fail-fast"];
    let flows = [
        "v1_12",
        "v1_14",
        "agent_trust",
        "controller_rights",
        "port_forwards",
        "alert_rules",
        "openshift",
    ];
    let flows = flows.map(|name| ["--test", name]);
    let flows = flows.as_flattened().iter().chain(&["--", "--include-ignored"]);
    let child = cargo::command(root).args(tests).args(flows).stdout(Stdio::piped()).spawn();
    let mut child = child.context("failed to run cargo")?;
    let mut outcome = FlowCounts::default();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.context("failed to read the output of the tests")?;
        println!("{line}");
        outcome.read_line(&line);
    }
    let status = child.wait().context("failed to wait for cargo")?;
    println!("{}", outcome.summary(status.success()));
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Test results of all minor versions.
#[derive(Default)]
struct FlowCounts {
    /// Successful flows, by minor version.
    passed: BTreeMap<String, usize>,
    failed: Vec<String>,
}

impl FlowCounts {
    /// Parses one line of a test's output.
    fn read_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["test", name, "...", how] = words[..] else {
            return;
        };
        if how == "ok" {
            let version = name.split_once("::").filter(|(version, _)| version.starts_with('v'));
            let version = version.map_or("other tests", |(version, _)| version);
            *self.passed.entry(version.to_owned()).or_default() += 1;
        } else {
            self.failed.push(name.to_owned());
        }
    }

    /// The result in one line.
    fn summary(&self, good: bool) -> String {
        let passed: Vec<String> =
            self.passed.iter().map(|(version, count)| format!("{version} {count}")).collect();
        let passed = format!("passed: {}", passed.join(", "));
        match (good, &self.failed[..]) {
            (true, _) => format!("testbed all: ok; {passed}"),
            (false, []) => format!("testbed all: FAILED without a failed test; {passed}"),
            (false, failed) => format!("testbed all: FAILED: {}; {passed}", failed.join(", ")),
        }
    }
}

/// Builds missing components; returns the line of JSON with their locations.
fn build(root: &Path, wanted: &[String]) -> anyhow::Result<String> {
    let lines = lines(&root.join("lab/testbed/go"))?;
    if let Some(unknown) = wanted.iter().find(|line| !lines.contains_key(*line)) {
        let known: Vec<&str> = lines.keys().map(String::as_str).collect();
        bail!("unknown Cluster API version {unknown}, lab/testbed/go has {}", known.join(" and "));
    }
    // Before the long builds: a missing etcd is reported immediately.
    let etcd = etcd()?;
    let cache = go::cache()?.join("testbed");
    let kubectl = kubectl::build(root)?;
    let kube_apiserver = api_server(root, &cache)?;
    let mut cluster_api = BTreeMap::new();
    for (line, directory) in lines {
        let asked = wanted.is_empty() || wanted.contains(&line);
        if let Some(parts) = managers(&line, directory, &cache, asked)? {
            cluster_api.insert(line, parts);
        }
    }
    let parts = Parts {
        kube_apiserver,
        etcd: Part { path: etcd },
        kubectl: Part { path: kubectl },
        hosts_provider: Part {
            path: own_program(&cache, "hosts-provider", root.join("examples/provider-go"), ".")?,
        },
        kubelet: Part {
            path: own_program(&cache, "kubelet", root.join(API_SERVER_MODULE), "./kubelet")?,
        },
        cluster_api,
    };
    let text = serde_json::to_string(&parts).context("failed to serialize the parts as JSON")?;
    let path = cache.join("parts.json");
    let partial = cache.join(format!("parts.json.partial-{}", std::process::id()));
    fs::write(&partial, format!("{text}\n"))
        .and_then(|()| fs::rename(&partial, &path))
        .with_context(|| format!("failed to write {}", path.display()))?;
    Ok(text)
}

/// The minor versions of Cluster API that have a module: `v1.14` and its directory.
fn lines(go: &Path) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let entries = fs::read_dir(go).with_context(|| format!("failed to read {}", go.display()))?;
    let mut lines = BTreeMap::new();
    for entry in entries {
        let path = entry.with_context(|| format!("failed to read {}", go.display()))?.path();
        if let Some(line) = path.file_name().and_then(|name| name.to_str()?.strip_prefix("capi-")) {
            lines.insert(line.to_owned(), path.clone());
        }
    }
    Ok(lines)
}

/// etcd comes from the distribution: no behaviour that Refit depends on changes between its
/// versions.
fn etcd() -> anyhow::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join("etcd"))
        .find(|file| file.is_file())
        .context(
            "etcd is not on the PATH: install it (on Debian and Ubuntu `apt-get install \
             etcd-server`, then `systemctl disable --now etcd` where systemd runs: the bed starts \
             its own)",
        )
}

fn api_server(root: &Path, cache: &Path) -> anyhow::Result<Versioned> {
    let module = Module::read(root.join(API_SERVER_MODULE))?;
    let version = module.version_of(KUBERNETES)?;
    let toolchain = module.toolchain()?;
    let home = cache.join(format!("apiserver-{version}-{toolchain}"));
    go::directory_once(&home, |partial| {
        go::print_progress(&format!(
            "building kube-apiserver {version} with {toolchain}: this takes many minutes, once"
        ))?;
        let flags = go::stamps(&API_SERVER_STAMPED, version);
        module.build(".", &flags, &partial.join("kube-apiserver"))
    })?;
    Ok(Versioned { version: version.to_owned(), path: home.join("kube-apiserver") })
}

/// Builds a program whose source is part of this repository: in every run, because Go compiles only what
/// has changed.
fn own_program(
    cache: &Path,
    name: &str,
    module: PathBuf,
    package: &str,
) -> anyhow::Result<PathBuf> {
    let home = cache.join(name);
    fs::create_dir_all(&home).with_context(|| format!("failed to create {}", home.display()))?;
    let path = home.join(name);
    Module::read(module)?.build(package, "", &path)?;
    Ok(path)
}

/// The managers of one minor version; `None` if they are neither built nor requested.
fn managers(
    line: &str,
    directory: PathBuf,
    cache: &Path,
    asked: bool,
) -> anyhow::Result<Option<ClusterApi>> {
    let module = Module::read(directory)?;
    let version = module.version_of(CLUSTER_API)?;
    let toolchain = module.toolchain()?;
    let infrastructure = module.version_of(CLUSTER_API_TEST)?;
    let home = cache.join(format!("capi-{line}-{version}-{toolchain}"));
    if !asked && !home.is_dir() {
        return Ok(None);
    }
    go::directory_once(&home, |partial| {
        let core = if module.has_tool(CORE) { CORE } else { CLUSTER_API };
        for (name, package) in [
            ("core", core.to_owned()),
            ("bootstrap", format!("{CLUSTER_API}/bootstrap/kubeadm")),
            ("control-plane", format!("{CLUSTER_API}/controlplane/kubeadm")),
            ("infrastructure", format!("{CLUSTER_API_TEST}/infrastructure/docker")),
        ] {
            go::print_progress(&format!(
                "building Cluster API's {name} manager {version} with {toolchain}: once"
            ))?;
            let flags = go::stamps(&MANAGER_STAMPED, version);
            module.build(&package, &flags, &partial.join(name))?;
            copy_config(&module.source_of(&package)?.join("config"), partial, name)?;
        }
        Ok(())
    })?;
    Ok(Some(ClusterApi {
        version: version.to_owned(),
        infrastructure_version: infrastructure.to_owned(),
        directory: home,
    }))
}

/// Copies a manager's CRDs and webhook configurations next to it, so that later runs do not need
/// the sources.
fn copy_config(config: &Path, home: &Path, name: &str) -> anyhow::Result<()> {
    let crds = home.join("crds").join(name);
    let webhooks = home.join("webhooks");
    fs::create_dir_all(&crds).with_context(|| format!("failed to create {}", crds.display()))?;
    fs::create_dir_all(&webhooks)
        .with_context(|| format!("failed to create {}", webhooks.display()))?;
    let bases = config.join("crd/bases");
    let entries =
        fs::read_dir(&bases).with_context(|| format!("failed to read {}", bases.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("failed to read {}", bases.display()))?.path();
        if let Some(file) = path.file_name()
            && path.extension().is_some_and(|kind| kind == "yaml")
        {
            copy(&path, &crds.join(file))?;
        }
    }
    copy(&config.join("webhook/manifests.yaml"), &webhooks.join(format!("{name}.yaml")))
}

/// Copies the content of a file without its mode: files in the module cache are read-only.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let bytes = fs::read(from).with_context(|| format!("failed to read {}", from.display()))?;
    fs::write(to, bytes).with_context(|| format!("failed to write {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_managers_and_an_infrastructure_provider() {
        let go = crate::root().join("lab/testbed/go");
        let lines = lines(&go).expect("the directory is in the tree");
        assert_eq!(lines.keys().collect::<Vec<_>>(), ["v1.12", "v1.14"]);
        for (line, directory) in lines {
            let module = Module::read(directory).expect("go.mod is in the tree");
            for name in [CLUSTER_API, CLUSTER_API_TEST] {
                let version = module.version_of(name).expect("it is required");
                assert!(
                    version.starts_with(&format!("{line}.")),
                    "{name} {version} is not of {line}"
                );
            }
        }
    }

    #[test]
    fn the_core_manager_has_its_own_package_since_v1_14() {
        for (line, own) in [("v1.12", false), ("v1.14", true)] {
            let directory = crate::root().join(format!("lab/testbed/go/capi-{line}"));
            let module = Module::read(directory).expect("go.mod is in the tree");
            assert_eq!(module.has_tool(CORE), own, "{line}");
            assert_eq!(module.has_tool(CLUSTER_API), !own, "{line}");
        }
    }

    #[test]
    fn the_last_line_counts_passes_and_lists_failures() {
        let mut outcome = FlowCounts::default();
        for line in [
            "running 2 tests",
            "test v1.12::a_flow    ... ok",
            "test v1.14::a_flow    ... ok",
            "test v1.14::another   ... ok",
            "test tests::a_unit ... ok",
        ] {
            outcome.read_line(line);
        }
        let summary = outcome.summary(true);
        assert_eq!(summary, "testbed all: ok; passed: other tests 1, v1.12 1, v1.14 2");
        outcome.read_line("test v1.12::a_third ... FAILED");
        assert!(outcome.summary(false).starts_with("testbed all: FAILED: v1.12::a_third; passed:"));
    }

    #[test]
    fn crds_and_webhooks_are_copied_next_to_the_managers() {
        let source = tempfile::tempdir().expect("a temporary directory");
        let home = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in [
            ("crd/bases/a.yaml", "a"),
            ("crd/bases/notes.md", "b"),
            ("webhook/manifests.yaml", "c"),
        ] {
            let path = source.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        }
        copy_config(source.path(), home.path(), "core").expect("copied");
        assert!(home.path().join("crds/core/a.yaml").is_file());
        assert!(!home.path().join("crds/core/notes.md").exists());
        assert!(home.path().join("webhooks/core.yaml").is_file());
    }
}
