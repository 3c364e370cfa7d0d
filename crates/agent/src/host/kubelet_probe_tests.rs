use std::os::unix::fs::PermissionsExt as _;

use refit_kinds::refit::FailureKind;

use super::*;
use crate::host::site::Tool;

const PORTS: &str = "invalid configuration: healthzPort (--healthz-port) 65536 must be between 1 and \
    65535, inclusive, invalid configuration: port (--port) 65536 must be between 1 and 65535, inclusive";

/// The last line of a kubelet that ends with an error.
fn failed(error: &str) -> String {
    format!(
        "I1121 server.go:1] \"x\"\nE1121 10:00:00 7 run.go:72] \"command failed\" err=\"{error}\"\n"
    )
}

#[test]
fn only_complaints_about_the_hosts_own_configuration_count() {
    let refuses = |text: &str| Verdict::Refuses(text.to_owned());
    let invalid = |errors: &str| {
        failed(&format!(
            "failed to validate kubelet configuration, error: {errors}, path: &TypeMeta{{}} port=65536"
        ))
    };
    let gate = "unrecognized feature gate: OldGate";
    for (output, verdict) in [
        (invalid(&format!("[{PORTS}]")), Verdict::Accepts),
        (
            invalid(&format!(
                "[invalid configuration: maxPods (--max-pods) -1 must not be a negative number, {PORTS}]"
            )),
            refuses("invalid configuration: maxPods (--max-pods) -1 must not be a negative number"),
        ),
        (invalid(&format!("[{PORTS}, invalid taint: x]")), refuses("invalid taint: x")),
        // The first of its errors ends the validation before it comes to the ports.
        (invalid("something else"), refuses("something else")),
        (
            failed("failed to parse kubelet flag: unknown flag: --old-flag"),
            Verdict::NoFlag("old-flag".to_owned()),
        ),
        (
            failed(&format!("failed to set feature gates from initial flags-based config: {gate}")),
            Verdict::NoGate(gate.to_owned()),
        ),
        (format!("panic: {gate}\n\ngoroutine 1 [running]:\n"), Verdict::NoGate(gate.to_owned())),
        (
            failed(
                "failed to set feature gates from initial flags-based config: cannot set feature gate X to false, feature is locked to true",
            ),
            Verdict::NoGate("cannot set feature gate X".to_owned()),
        ),
        ("panic: odd\n\ngoroutine 1\n".to_owned(), refuses("panic: odd")),
        // A later kubelet without these flags, and programs that are no kubelet.
        (failed("failed to parse kubelet flag: unknown flag: --healthz-port"), Verdict::Unclear),
        (failed("failed to parse kubelet flag: unknown flag: --root-dir"), Verdict::Unclear),
        (String::new(), Verdict::Unclear),
        ("Kubernetes v1.35.0\n".to_owned(), Verdict::Unclear),
    ] {
        assert_eq!(judge(&output), verdict, "{output}");
    }
}

#[test]
fn an_unreadable_configuration_of_the_kubelet_is_shown() {
    let text =
        failed("failed to load kubelet config file, path: /c.yaml, error: failed to decode: yaml");
    let Verdict::Refuses(why) = judge(&text) else { panic!("it is refused") };
    assert!(why.starts_with("failed to load kubelet config file, path: /c.yaml"), "{why}");
}

const SHOWN_BY_SYSTEMD: &str = "\
ExecStart={ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS --v=2 $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS --node-ip=${IP} ; ignore_errors=no ; start_time=[n/a] ; status=0/0 }
Environment=$'KUBELET_KUBECONFIG_ARGS=--kubeconfig=/a --config /b.yaml' IP=10.0.0.7
EnvironmentFiles=/flags.env (ignore_errors=yes)
EnvironmentFiles=/etc/default/kubelet (ignore_errors=yes)
";

#[test]
fn the_kubelet_gets_the_words_that_systemd_passes() {
    let read = |path: &str| {
        let text = match path {
            "/flags.env" => "KUBELET_KUBEADM_ARGS=\"--a=1 --b \\\"two words\\\"\"\n",
            "/etc/default/kubelet" => {
                "# mine\nKUBELET_EXTRA_ARGS=--old\nKUBELET_EXTRA_ARGS=--c='x y' \\\n  --d\n"
            }
            _ => "",
        };
        text.to_owned()
    };
    let start = Start::parse(SHOWN_BY_SYSTEMD, read).unwrap();
    let words = [
        "--kubeconfig=/a",
        "--config",
        "/b.yaml",
        "--v=2",
        "--a=1",
        "--b",
        "two words",
        "--c=x y",
        "--d",
        "--node-ip=10.0.0.7",
    ];
    assert_eq!(start.words, words);
    assert_eq!(start.value("--config").as_deref(), Some("/b.yaml"));
    assert_eq!(start.value("--v").as_deref(), Some("2"));
    assert_eq!(start.value("--config-dir"), None);
    let script = SHOWN_BY_SYSTEMD.replace("/usr/bin/kubelet", "/usr/bin/start-it");
    assert_eq!(Start::parse(&script, read), None, "a script may have flags of its own");
    assert_eq!(Start::parse("", read), None);
}

struct World {
    directory: tempfile::TempDir,
    site: Site,
}

impl World {
    /// A host with a stand-in for the kubelet. It ends as the real one does with flags that it refuses,
    /// and knows the flags of this pattern of a shell.
    fn new(known: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        for path in ["/var/lib/kubelet", "/etc/default"] {
            fs::create_dir_all(site.path(path)).unwrap();
        }
        fs::create_dir_all(site.state()).unwrap();
        let script = format!(
            "#!/bin/sh\nfail() {{ echo \"E1121 run.go:72] \\\"command failed\\\" err=\\\"$1\\\"\" >&2; exit 1; }}\n\
             touch \"$0.started\"\n\
             for flag in \"$@\"; do case $flag in\n\
             --config=*) config=${{flag#*=}};;\n\
             --root-dir=*|--port=*|--healthz-port=*|{known}) ;;\n\
             -*) fail \"failed to parse kubelet flag: unknown flag: ${{flag%%=*}}\";; esac; done\n\
             gate=$(sed -n 's/^  Old.*: .*/&/p' \"$config\" | tr -d ' ' | cut -d: -f1)\n\
             [ -z \"$gate\" ] || {{ echo \"panic: unrecognized feature gate: $gate\"; exit 2; }}\n\
             fail \"failed to validate kubelet configuration, error: [{PORTS}], path: &x\"\n"
        );
        let path = directory.path().join("kubelet");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let tool = |path: &str| Tool { path: path.to_owned(), ..Tool::default() };
        let site = site
            .with_tool(Program::Kubelet, tool(&path.display().to_string()))
            .with_tool(Program::Systemctl, tool("/no/such/program"));
        let world = Self { directory, site };
        world.write(KUBELET_CONFIG, "kind: KubeletConfiguration\n");
        world
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.site.path(path), text).unwrap();
    }
}

#[tokio::test]
async fn a_flag_that_the_new_kubelet_does_not_know_stops_before_the_restart() {
    let world = World::new("--v=*");
    let (file, _) = kubelet::FILES[0];
    world.write(file, "KUBELET_KUBEADM_ARGS=\"--container-runtime remote --v=2\"\n");
    let error = check(&world.site).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    assert!(error.message.contains("does not support the flag --container-runtime "), "{error}");
    assert!(error.message.contains("kubeadm-flags.env"), "{error}");
    check(&World::new("--v=*").site).await.unwrap();
}

#[tokio::test]
async fn a_feature_gate_that_the_new_kubelet_does_not_know_stops_before_the_restart() {
    let world = World::new("--v=*");
    check(&world.site).await.unwrap();
    world.write(KUBELET_CONFIG, "featureGates:\n  OldGate: true\n");
    let error = check(&world.site).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    for part in ["unrecognized feature gate: OldGate", "config.yaml", "ConfigMap kubelet-config"] {
        assert!(error.message.contains(part), "{error}");
    }
}

#[tokio::test]
async fn the_check_of_the_kubelet_leaves_nothing_behind() {
    let world = World::new("--v=*");
    check(&world.site).await.unwrap();
    assert!(world.directory.path().join("kubelet.started").exists());
    let left: Vec<_> = fs::read_dir(world.site.state()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the log of the unit: {left:?}");
}

#[tokio::test]
async fn a_program_that_is_no_kubelet_does_not_stop_the_plan() {
    let world = World::new("--v=*");
    let path = world.directory.path().join("kubelet");
    fs::write(path, "#!/bin/sh\nexit 0\n").unwrap();
    check(&world.site).await.unwrap();
}
