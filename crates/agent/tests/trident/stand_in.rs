//! A stand-in for Trident: its command line, states and traps, as far as the driver uses them. It
//! keeps a host with two volumes in one JSON file.

use std::{fs, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Environment variable with the directory of the stand-in's host.
pub(crate) const DIRECTORY: &str = "REFIT_TRIDENT_STAND_IN";
const KEYS: [&str; 7] =
    ["image", "storage", "scripts", "health", "os", "trident", "internalParams"];

/// A host with two volumes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) servicing_state: String,
    pub(crate) spec: Value,
    pub(crate) spec_old: Value,
    pub(crate) last_error: Value,
    /// The active volume according to Trident: `volume-a` or `volume-b`.
    pub(crate) active: String,
    /// The volume that the host has booted.
    pub(crate) booted: String,
    /// The volume that the firmware boots by default.
    pub(crate) default: String,
    /// The volume that the firmware boots once (BootNext).
    pub(crate) next: Option<String>,
    pub(crate) boots: u32,
    /// sha384 of the images by URL. Any other URL is unreachable.
    pub(crate) images: std::collections::BTreeMap<String, String>,
    /// Services that do not run in the new OS.
    pub(crate) failing: Vec<String>,
    /// Whether the firmware ignores BootNext.
    pub(crate) forgetful_firmware: bool,
    /// How many more calls fail because another process holds the lock.
    pub(crate) busy: u32,
    /// Log of events, for the tests.
    pub(crate) log: Vec<String>,
}

/// An error and Trident's exit code.
struct Failed(i32, String);

fn failed<T>(message: &str) -> Result<T, Failed> {
    Err(Failed(2, message.to_owned()))
}

impl Host {
    /// A host that was installed with an image.
    pub(crate) fn installed(url: &str, sha384: &str) -> Self {
        Self {
            servicing_state: "provisioned".to_owned(),
            spec: json!({
                "image": { "url": url, "sha384": sha384 },
                "storage": { "disks": [{ "id": "os", "device": "/dev/vda" }] },
                "os": { "selinux": { "mode": "enforcing" } },
            }),
            active: "volume-a".to_owned(),
            booted: "volume-a".to_owned(),
            default: "volume-a".to_owned(),
            boots: 1,
            images: [(url.to_owned(), sha384.to_owned())].into(),
            ..Self::default()
        }
    }

    fn file() -> PathBuf {
        let directory =
            std::env::var_os(DIRECTORY).expect("the test sets the directory of the host");
        PathBuf::from(directory).join("host.json")
    }

    pub(crate) fn load_from(file: &std::path::Path) -> Self {
        serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
    }

    pub(crate) fn save_to(&self, file: &std::path::Path) {
        fs::write(file, serde_json::to_vec_pretty(self).unwrap()).unwrap();
    }

    pub(crate) fn enter(&mut self, state: &str) {
        state.clone_into(&mut self.servicing_state);
    }

    /// Boots the host, as the firmware does.
    pub(crate) fn boot(&mut self) {
        let next = self.next.take().filter(|_| !self.forgetful_firmware);
        self.booted = next.unwrap_or_else(|| self.default.clone());
        self.boots += 1;
        self.log.push(format!("boot {}", self.booted));
    }

    fn other(&self) -> String {
        if self.active == "volume-a" { "volume-b" } else { "volume-a" }.to_owned()
    }

    fn update(&mut self, config: &Value, operations: &str) -> Result<(), Failed> {
        self.check(config)?;
        let finalize = operations.split(',').any(|word| word == "finalize");
        let staged = self.servicing_state == "ab-update-staged";
        // Trident ignores the allowed operations here: finalizing a host on which nothing is staged
        // stages the image first, and a configuration with scripts always has something to do.
        let stray = finalize && !staged && has_scripts(config);
        if operations.split(',').any(|word| word == "stage") || stray {
            self.stage(config.clone())?;
        }
        if finalize {
            self.finalize(config)?;
        }
        Ok(())
    }

    fn check(&self, config: &Value) -> Result<(), Failed> {
        let Some(config) = config.as_object() else {
            return failed("Failed to parse host configuration");
        };
        if let Some(key) = config.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return failed(&format!("unknown field `{key}`"));
        }
        let url = config.get("image").and_then(|image| image["url"].as_str()).unwrap_or_default();
        if !url.contains("://") {
            return failed("invalid value: relative URL without a base");
        }
        let storage = config.get("storage");
        if storage.is_some_and(|storage| *storage != self.spec["storage"]) {
            return failed("StorageConfigurationChanged");
        }
        Ok(())
    }

    fn stage(&mut self, config: Value) -> Result<(), Failed> {
        if self.servicing_state == "ab-update-staged" {
            self.spec = self.spec_old.take();
            self.enter("provisioned");
        }
        if self.servicing_state != "provisioned" {
            return failed(&format!("cannot update in state {}", self.servicing_state));
        }
        self.last_error = Value::Null;
        self.image(&config)?;
        let changed = config["image"]["sha384"] != self.spec["image"]["sha384"];
        if !changed && !has_scripts(&config) {
            if config["os"] == self.spec["os"] {
                self.log.push("No update servicing required".to_owned());
            } else {
                // Trident records the configuration as applied without applying it.
                self.spec = config;
                self.log.push("runtime update".to_owned());
            }
            return Ok(());
        }
        for script in config["scripts"]["preServicing"].as_array().into_iter().flatten() {
            // The scripts run before the kind of servicing is known.
            if script["runOn"].as_array().is_some_and(|on| on.contains(&json!("all"))) {
                self.log.push(format!("script {}", script["name"]));
            }
        }
        self.spec_old = std::mem::replace(&mut self.spec, config);
        self.enter("ab-update-staged");
        self.log.push("staged".to_owned());
        Ok(())
    }

    /// Loads the metadata of the image, which must be reachable each time.
    fn image(&self, config: &Value) -> Result<(), Failed> {
        let url = config["image"]["url"].as_str().unwrap_or_default();
        match self.images.get(url).map(String::as_str) {
            None => failed("Failed to load COSI metadata: error sending request"),
            Some("another distro") => {
                failed("image distro 'ubuntu' does not match host 'azurelinux'")
            }
            Some(sum) if config["image"]["sha384"] != sum => failed("sha384 does not match"),
            Some(_) => Ok(()),
        }
    }

    fn finalize(&mut self, config: &Value) -> Result<(), Failed> {
        if self.servicing_state != "ab-update-staged" {
            return Ok(());
        }
        self.image(config)?;
        self.next = Some(self.other());
        self.enter("ab-update-finalized");
        self.log.push("finalized".to_owned());
        if self.spec["internalParams"]["noTransition"] != true {
            self.log.push("Trident reboots".to_owned());
            self.boot();
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Failed> {
        match self.servicing_state.as_str() {
            "ab-update-finalized" if self.booted == self.other() => self.commit_new(),
            "ab-update-finalized" => {
                self.give_up(json!({
                    "category": "servicing",
                    "error": "AbUpdateRebootCheck",
                    "message": "the host booted from the old root",
                }));
                failed("AbUpdateRebootCheck")
            }
            "ab-update-health-check-failed" => {
                let error = self.last_error.clone();
                self.give_up(error);
                failed("AbUpdateHealthCheckCommitCheck")
            }
            "manual-rollback-ab-finalized" if self.booted == self.other() => {
                self.active.clone_from(&self.booted);
                self.default.clone_from(&self.booted);
                self.spec = self.spec_old.take();
                self.enter("provisioned");
                Ok(())
            }
            _ => {
                self.log.push("No servicing in progress, skipping".to_owned());
                Ok(())
            }
        }
    }

    fn commit_new(&mut self) -> Result<(), Failed> {
        let checks = self.spec["health"]["checks"].as_array().cloned().unwrap_or_default();
        let runs = |check: &&Value| {
            check["runOn"].as_array().is_some_and(|on| on.contains(&json!("ab-update")))
        };
        for check in checks.iter().filter(runs) {
            let services = check["systemdServices"].as_array().into_iter().flatten();
            let down = services
                .filter_map(Value::as_str)
                .find(|service| self.failing.iter().any(|failing| failing == service));
            if let Some(down) = down {
                self.last_error = json!({
                    "category": "health-checks",
                    "error": "HealthChecks",
                    "message": format!("{down} is not active"),
                });
                self.enter("ab-update-health-check-failed");
                self.boot();
                return failed("health check failed");
            }
        }
        self.spec_old = Value::Null;
        self.active.clone_from(&self.booted);
        self.default.clone_from(&self.booted);
        self.enter("provisioned");
        self.log.push("committed".to_owned());
        Ok(())
    }

    fn give_up(&mut self, error: Value) {
        self.spec = self.spec_old.take();
        self.enter("provisioned");
        self.last_error = error;
    }

    fn rollback(&mut self, check: bool) -> Result<(), Failed> {
        if self.servicing_state != "provisioned" || !self.last_error.is_null() {
            return failed("no rollback is available");
        }
        if !check {
            self.next = Some(self.other());
            self.enter("manual-rollback-ab-finalized");
            self.log.push("rollback".to_owned());
        }
        Ok(())
    }

    fn get(&self, what: &str) -> Result<String, Failed> {
        let value = match what {
            "configuration" => self.spec.clone(),
            _ => json!({
                "servicingState": self.servicing_state,
                "spec": self.spec,
                "specOld": self.spec_old,
                "lastError": self.last_error,
                "abActiveVolume": self.active,
                "tridentVersion": "0.27.0",
            }),
        };
        if self.servicing_state == "not-provisioned" {
            return failed("the datastore does not exist");
        }
        Ok(format!("{value:#}"))
    }
}

fn has_scripts(config: &Value) -> bool {
    let phases = config["scripts"].as_object().into_iter().flatten();
    phases.into_iter().any(|(_, scripts)| scripts.as_array().is_some_and(|list| !list.is_empty()))
}

/// Runs a command of Trident or of efibootmgr, and returns the exit code.
pub(crate) fn play(arguments: &[String]) -> i32 {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let file = Host::file();
    let mut host = Host::load_from(&file);
    let servicing = !matches!(words.as_slice(), ["get" | "efibootmgr", ..]);
    let read = |path: &str| -> Value {
        // Trident accepts only YAML; JSON is YAML.
        serde_saphyr::from_str(&fs::read_to_string(path).unwrap_or_default()).unwrap_or_default()
    };
    let outcome = if servicing && host.busy > 0 {
        host.busy -= 1;
        failed("Servicing is active").map(|()| String::new())
    } else {
        match words.as_slice() {
            ["get", what] => host.get(what),
            ["validate", path] => host.check(&read(path)).map(|()| String::new()),
            ["update", path, "--allowed-operations", operations] => {
                host.update(&read(path), operations).map(|()| String::new())
            }
            ["commit"] => host.commit().map(|()| String::new()),
            ["rollback", "--check"] => host.rollback(true).map(|()| String::new()),
            ["rollback", "--ab", ..] => host.rollback(false).map(|()| String::new()),
            ["efibootmgr"] => Ok(match &host.next {
                Some(next) => format!("BootCurrent: 0001\nBootNext: {next}\nBootOrder: 0001"),
                None => "BootCurrent: 0001\nBootOrder: 0001".to_owned(),
            }),
            ["efibootmgr", "--delete-bootnext"] => match host.next.take() {
                Some(_) => Ok(String::new()),
                None => failed("Could not delete BootNext: No such file or directory")
                    .map(|()| String::new()),
            },
            other => failed(&format!("unrecognized {other:?}")).map(|()| String::new()),
        }
    };
    host.save_to(&file);
    match outcome {
        Ok(output) => {
            println!("{output}");
            0
        }
        Err(Failed(code, message)) => {
            eprintln!("Error: {message}");
            code
        }
    }
}
