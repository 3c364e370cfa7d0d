//! Builds a current kubectl from its Go module, once per version, into the cache.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, bail};

/// The module that kubectl is made of.
const MODULE: &str = "k8s.io/kubectl";
/// Packages that tell kubectl its version.
const STAMPED: [&str; 2] = [
    "k8s.io/component-base/version",
    "k8s.io/client-go/pkg/version",
];

/// Prints the path of kubectl, after building it where it is not there yet.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let folder = root.join("tools/kubectl");
    let go_mod = folder.join("go.mod");
    let text = fs::read_to_string(&go_mod)
        .with_context(|| format!("{} cannot be read", go_mod.display()))?;
    let version = required_version(&text)
        .with_context(|| format!("{} requires no {MODULE}", go_mod.display()))?;
    let go = go_version()?;
    let home = cache()?.join(format!("kubectl/{version}-{go}"));
    let path = home.join("kubectl");
    if !path.is_file() {
        tell(&format!(
            "building kubectl {version} with {go}: this takes some minutes, once"
        ))?;
        fs::create_dir_all(&home).with_context(|| format!("{} cannot be made", home.display()))?;
        build(&folder, version, &path)?;
    }
    #[expect(clippy::print_stdout, reason = "the result of the task")]
    {
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stderr(), "{line}").context("stderr is closed")
}

/// The version of the module that a go.mod requires.
fn required_version(go_mod: &str) -> Option<&str> {
    go_mod.lines().find_map(|line| {
        let mut words = line
            .trim()
            .trim_start_matches("require ")
            .split_whitespace();
        (words.next() == Some(MODULE))
            .then(|| words.next())
            .flatten()
    })
}

/// `go1.26.8-linux-amd64`.
fn go_version() -> anyhow::Result<String> {
    let output = Command::new("go")
        .args(["env", "GOVERSION", "GOOS", "GOARCH"])
        .stderr(Stdio::inherit())
        .output()
        .context(
            "go cannot be run: install Go 1.25 or newer (https://go.dev/dl) and put it on the PATH",
        )?;
    if !output.status.success() {
        bail!("go env failed with {}", output.status);
    }
    let text = String::from_utf8(output.stdout).context("go env printed no UTF-8")?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join("-"))
}

/// `REFIT_CACHE`, by default `~/.cache/refit`.
fn cache() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("REFIT_CACHE") {
        return Ok(PathBuf::from(path));
    }
    let home = env::var_os("HOME").context("neither REFIT_CACHE nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cache/refit"))
}

/// Builds into a file beside the target and moves it there whole.
fn build(folder: &Path, version: &str, path: &Path) -> anyhow::Result<()> {
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    let status = Command::new("go")
        .current_dir(folder)
        .args([
            "build",
            "-p",
            "2",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
        ])
        .arg(format!("-s -w {}", stamps(version)))
        .arg("-o")
        .arg(&partial)
        .arg(".")
        .env("CGO_ENABLED", "0")
        .env("GOMEMLIMIT", "2GiB")
        .stdout(Stdio::null())
        .status()
        .context("go cannot be run")?;
    if !status.success() {
        let _ = fs::remove_file(&partial);
        bail!(
            "kubectl could not be built ({status}): its modules come from the Go module proxy; see \
             the lines of go above"
        );
    }
    fs::rename(&partial, path).with_context(|| format!("{} cannot be written", path.display()))
}

/// Linker flags that stamp the version: kubectl's module `v0.35.1` is Kubernetes `v1.35.1`.
fn stamps(version: &str) -> String {
    let number = version.trim_start_matches("v0.");
    let minor = number.split('.').next().unwrap_or_default();
    let facts = [
        ("gitVersion", format!("v1.{number}")),
        ("gitMajor", "1".to_owned()),
        ("gitMinor", minor.to_owned()),
        ("gitTreeState", "clean".to_owned()),
    ];
    let flags: Vec<String> = STAMPED
        .iter()
        .flat_map(|package| {
            facts
                .iter()
                .map(move |(name, value)| format!("-X {package}.{name}={value}"))
        })
        .collect();
    flags.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_go_mod() {
        let text =
            "module x\n\nrequire (\n\tk8s.io/component-base v0.35.1\n\tk8s.io/kubectl v0.35.2\n)\n";
        assert_eq!(required_version(text), Some("v0.35.2"));
        assert_eq!(
            required_version("require k8s.io/kubectl v0.36.0"),
            Some("v0.36.0")
        );
        assert_eq!(required_version("module x"), None);
    }

    #[test]
    fn kubectl_is_stamped_with_the_version_of_kubernetes() {
        assert!(stamps("v0.35.2").contains("component-base/version.gitVersion=v1.35.2"));
        assert!(stamps("v0.35.2").contains("gitMinor=35"));
    }
}
