//! Builds the agent for an older C library than this machine's, and for other processors: `cargo zigbuild` of
//! tools/zig, installed once into the cache.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use crate::{cargo, go, package::called};

/// The C library of the oldest hosts: RHEL 8 has 2.28, Debian 11 and SLES 15 have 2.31 (docs/agent.md).
pub(crate) const GLIBC: u32 = 28;
const REQUIREMENTS: &str = "tools/zig/requirements.txt";

/// Builds a package of the workspace with profile `dist` for the target `triple`, and returns the program.
pub(crate) fn build(
    root: &Path,
    target: &Path,
    package: &str,
    triple: &str,
) -> anyhow::Result<PathBuf> {
    standard_library(triple)?;
    let tools = tools(root)?;
    let mut build = cargo::command(root);
    // Cargo finds `cargo-zigbuild` by its path.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(tools.join("bin")).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(path).context("PATH contains a path with `:`")?;
    build
        .args(["zigbuild", "--profile", "dist", "--locked", "--package", package])
        .arg(format!("--target={triple}.2.{GLIBC}"))
        .env("PATH", path)
        .env("CARGO_ZIGBUILD_ZIG_PATH", tools.join("ziglang/zig"))
        .stdout(std::io::stderr());
    called(&mut build)?;
    Ok(target.join(triple).join("dist").join(package))
}

/// Checks that the compiler has the standard library of a target.
fn standard_library(triple: &str) -> anyhow::Result<()> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut ask = Command::new(&rustc);
    ask.args(["--print", "target-libdir", "--target", triple]);
    let output = ask.output().with_context(|| format!("failed to start {}", rustc.display()))?;
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success() && Path::new(&directory).is_dir(),
        "{} has no standard library for {triple}: run `rustup target add {triple}`, or set RUSTC to a compiler that has \
         it, such as /usr/bin/rustc with Debian's packages rustc-web and libstd-rust-web-dev:arm64",
        rustc.display()
    );
    Ok(())
}

/// Installs the tools if they are missing, and returns their directory.
fn tools(root: &Path) -> anyhow::Result<PathBuf> {
    let path = root.join(REQUIREMENTS);
    let pinned =
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let versions: Vec<&str> = pinned
        .lines()
        .filter_map(|line| line.split_once("==")?.1.split_whitespace().next())
        .collect();
    let home = go::cache()?.join("zig").join(versions.join("-"));
    if home.is_dir() {
        return Ok(home);
    }
    go::print_progress("installing cargo-zigbuild and zig: 100 MB, once")?;
    let partial = home.with_extension(format!("partial-{}", std::process::id()));
    let mut install = Command::new("python3");
    install
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"])
        .args(["--only-binary", ":all:", "--root-user-action", "ignore", "--requirement"])
        .arg(&path)
        .arg("--target")
        .arg(&partial)
        .stdout(std::io::stderr());
    called(&mut install).context("failed to run pip: install Debian's python3-pip")?;
    match fs::rename(&partial, &home) {
        // Another process was faster.
        Err(_) if home.is_dir() => fs::remove_dir_all(&partial)
            .with_context(|| format!("failed to remove {}", partial.display()))?,
        outcome => outcome.with_context(|| format!("failed to write {}", home.display()))?,
    }
    Ok(home)
}
