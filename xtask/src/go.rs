//! Builds programs from Go modules into the cache: once per version, moved there atomically.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

/// Prints progress to stderr.
pub(crate) fn print_progress(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stderr(), "{line}").context("failed to write to stderr")
}

/// `REFIT_CACHE`, by default `~/.cache/refit`.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("REFIT_CACHE") {
        return std::path::absolute(&path)
            .with_context(|| format!("invalid REFIT_CACHE {}, expected a path", path.display()));
    }
    let home = env::var_os("HOME").context("neither REFIT_CACHE nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cache/refit"))
}

/// A Go module of this repository.
pub(crate) struct Module {
    directory: PathBuf,
    go_mod: String,
}

impl Module {
    /// Reads the go.mod of a directory.
    pub(crate) fn read(directory: PathBuf) -> anyhow::Result<Self> {
        let path = directory.join("go.mod");
        let go_mod = fs::read_to_string(&path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        Ok(Self { directory, go_mod })
    }

    /// The version that go.mod requires of a module.
    pub(crate) fn version_of(&self, module: &str) -> anyhow::Result<&str> {
        required_version(&self.go_mod, module).with_context(|| {
            let path = self.directory.join("go.mod");
            format!("{} does not require {module}", path.display())
        })
    }

    /// Whether go.mod lists a package as a tool.
    pub(crate) fn has_tool(&self, package: &str) -> bool {
        self.go_mod.lines().any(|line| line.trim().trim_start_matches("tool ") == package)
    }

    /// `go1.26.8-linux-amd64`: the toolchain that go selects for this module, which may be newer
    /// than the installed one.
    pub(crate) fn toolchain(&self) -> anyhow::Result<String> {
        toolchain(&self.directory)
    }

    /// The directory of a package's source.
    pub(crate) fn source_of(&self, package: &str) -> anyhow::Result<PathBuf> {
        let text = ask(&self.directory, &["list", "-f", "{{.Dir}}", package])?;
        let line = text.trim();
        if line.is_empty() {
            bail!("go list reports no directory of {package}");
        }
        Ok(PathBuf::from(line))
    }

    /// Builds a package (`.` for the module's own) into `path`. The directory of `path` must exist.
    pub(crate) fn build(&self, package: &str, linker: &str, path: &Path) -> anyhow::Result<()> {
        let partial = path.with_extension(format!("partial-{}", std::process::id()));
        let status = self
            .go()
            .args(["build", "-p", "2", "-trimpath", "-buildvcs=false"])
            // Tests spend more time on waiting for the build of these programs than on running
            // them. Without inlining, the compilation takes a third less.
            .args(["-gcflags=all=-l -dwarf=false", "-ldflags"])
            .arg(format!("-s -w {linker}"))
            .arg("-o")
            .arg(&partial)
            .arg(package)
            .env("CGO_ENABLED", "0")
            // Without this, the compiler spends a tenth of its time on garbage collection.
            .env("GOGC", "off")
            .env("GOMEMLIMIT", "4GiB")
            .stdout(Stdio::null())
            .status()
            .context("failed to run go")?;
        if !status.success() {
            let _ = fs::remove_file(&partial);
            let way_out = if status.code().is_some() {
                "see the output of go above; it downloads modules from the Go module proxy"
            } else {
                "it was killed or ran out of memory: the next run reuses the compiled packages"
            };
            bail!("failed to build {} ({status}): {way_out}", path.display());
        }
        fs::rename(&partial, path).with_context(|| format!("failed to write {}", path.display()))
    }

    fn go(&self) -> Command {
        let mut command = Command::new("go");
        command.current_dir(&self.directory);
        command
    }
}

/// `go1.26.8-linux-amd64`: the toolchain that go selects in a directory.
pub(crate) fn toolchain(directory: &Path) -> anyhow::Result<String> {
    let text = ask(directory, &["env", "GOVERSION", "GOOS", "GOARCH"])?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join("-"))
}

fn ask(directory: &Path, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("go")
        .current_dir(directory)
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .context(
            "failed to run go: install Go 1.26 or newer (https://go.dev/dl) and put it on the PATH",
        )?;
    if !output.status.success() {
        bail!("go {} failed with {}", args.join(" "), output.status);
    }
    String::from_utf8(output.stdout).context("the output of go is not UTF-8")
}

/// The version of the module that a go.mod requires.
fn required_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        let version = (words.next() == Some(module)).then(|| words.next()).flatten()?;
        version.starts_with('v').then_some(version)
    })
}

/// Linker flags that set a version such as `v1.35.8` in packages with Kubernetes' version
/// variables.
pub(crate) fn stamps(packages: &[&str], version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let facts = [
        ("gitVersion", version),
        ("gitMajor", numbers.next().unwrap_or_default()),
        ("gitMinor", numbers.next().unwrap_or_default()),
        ("gitTreeState", "clean"),
    ];
    let flags: Vec<String> = packages
        .iter()
        .flat_map(|package| facts.map(|(name, value)| format!("-X {package}.{name}={value}")))
        .collect();
    flags.join(" ")
}

/// Creates a directory of the cache under a temporary name and renames it, unless it exists: an
/// existing one is complete.
pub(crate) fn directory_once(
    home: &Path,
    fill: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if home.is_dir() {
        return Ok(());
    }
    clear_abandoned(home);
    let partial = home.with_added_extension(format!("partial-{}", std::process::id()));
    fs::create_dir_all(&partial)
        .with_context(|| format!("failed to create {}", partial.display()))?;
    let done = fill(&partial).and_then(|()| {
        fs::rename(&partial, home).or_else(|error| {
            // Another build finished first.
            if home.is_dir() {
                return Ok(());
            }
            Err(error).with_context(|| format!("failed to write {}", home.display()))
        })
    });
    let _ = fs::remove_dir_all(&partial);
    done
}

/// Removes the leftovers of killed builds of this directory.
fn clear_abandoned(home: &Path) {
    let (Some(parent), Some(name)) = (home.parent(), home.file_name().and_then(|n| n.to_str()))
    else {
        return;
    };
    let prefix = format!("{name}.partial-");
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let owner = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix(&prefix)?.parse::<u32>().ok());
        if let Some(process) = owner
            && Path::new("/proc/self").exists()
            && !Path::new(&format!("/proc/{process}")).exists()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_go_mod() {
        let text = "module x\n\ntool (\n\tx.io/a\n)\n\nrequire (\n\tx.io/b v0.35.1\n\tx.io/a \
                    v0.35.2\n)\n";
        assert_eq!(required_version(text, "x.io/a"), Some("v0.35.2"));
        assert_eq!(required_version("require x.io/a v0.36.0", "x.io/a"), Some("v0.36.0"));
        assert_eq!(required_version("replace (\n\tx.io/a => x.io/a v0.36.0\n)", "x.io/a"), None);
    }

    #[test]
    fn a_tool_is_found_in_a_block_and_alone() {
        let module = |go_mod: &str| Module { directory: PathBuf::new(), go_mod: go_mod.to_owned() };
        assert!(module("tool (\n\tx.io/a/core\n)").has_tool("x.io/a/core"));
        assert!(module("tool x.io/a/core").has_tool("x.io/a/core"));
        assert!(!module("tool (\n\tx.io/a/core\n)").has_tool("x.io/a"));
    }

    #[test]
    fn stamps_contain_version_major_and_minor() {
        let flags = stamps(&["k8s.io/component-base/version"], "v1.35.8");
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.35.8"));
        assert!(flags.contains("version.gitMajor=1 "));
        assert!(flags.contains("version.gitMinor=35 "));
    }

    #[test]
    fn a_directory_is_created_atomically() {
        let cache = tempfile::tempdir().expect("a temporary directory");
        let home = cache.path().join("thing-v1.2.3");
        let failed = directory_once(&home, |partial| {
            fs::write(partial.join("half"), "")?;
            bail!("out of luck")
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_dir(cache.path()).expect("listed").count(), 0);

        directory_once(&home, |partial| Ok(fs::write(partial.join("whole"), "")?)).expect("made");
        directory_once(&home, |_| bail!("asked a second time")).expect("it is there");
        assert!(home.join("whole").is_file());
        assert_eq!(fs::read_dir(cache.path()).expect("listed").count(), 1);
    }
}
