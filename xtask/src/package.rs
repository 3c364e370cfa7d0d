//! Builds the agent as .deb and .rpm. The same program and time produce the same bytes.
//!
//! The content is in deploy/agent: the unit, its settings, the scripts that enable and restart it.
//! The program runs with the C library of older hosts; the required version is read from it.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, bail, ensure};
use rpm::{BuildConfig, CompressionWithLevel, Dependency, FileOptions, PackageBuilder};

use crate::zig;

const NAME: &str = "refit-agent";
const SUMMARY: &str = "Upgrades this Kubernetes machine in place";
const DESCRIPTION: &str = "The host side of Refit: runs the steps of this node's HostPlan \
    (packages, kubeadm, kubelet, OS image, reboot) that the controller allows, and reports them.";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Options of the task.
#[derive(Default, clap::Args)]
pub(crate) struct PackageArgs {
    /// Write the packages to this directory [default: target/packages].
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Package this existing program as it is [default: this checkout, built small by profile `dist`].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Build for this processor architecture [default: this machine's].
    #[arg(long, conflicts_with = "program")]
    target: Option<Architecture>,
}

/// A processor architecture, with its names in packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// This machine's.
    fn own() -> anyhow::Result<Self> {
        match env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("the agent is built for amd64 and arm64, not for {other}: set --target"),
        }
    }

    /// Its name in Debian's packages.
    fn deb(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Its name in packages of rpm.
    fn rpm(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// The target of Rust.
    fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.rpm())
    }
}

struct Item {
    path: &'static str,
    content: Vec<u8>,
    mode: u16,
    config: bool,
}

/// The content of both packages.
struct Agent {
    items: Vec<Item>,
    architecture: Architecture,
    /// The newest minor version of the C library, 2.x, that the program requires; `None` if it requires none.
    glibc: Option<u32>,
    /// Whether the program requires the compiler's own library.
    libgcc: bool,
    /// Time of the files, in seconds since 1970.
    time: u32,
}

/// Builds both packages and prints their paths.
pub(crate) fn run(root: &Path, args: &PackageArgs) -> anyhow::Result<ExitCode> {
    let packages = packages(root, args)?;
    #[expect(clippy::print_stdout, reason = "the result of the task")]
    {
        println!("{}", packages.map(|path| path.display().to_string()).join(" "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds both packages: `.deb` and `.rpm`.
pub(crate) fn packages(root: &Path, args: &PackageArgs) -> anyhow::Result<[PathBuf; 2]> {
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| target(root).join("packages"));
    fs::create_dir_all(&out).with_context(|| format!("failed to create {}", out.display()))?;
    let program = match &args.program {
        Some(program) => program.clone(),
        None => build(root, args.target)?,
    };
    let content =
        fs::read(&program).with_context(|| format!("failed to read {}", program.display()))?;
    let agent = agent(root, &content)?;
    if args.program.is_none() {
        runs_on_old_hosts(&agent)?;
    }
    Ok([deb(root, &agent, &out)?, rpm(root, &agent, &out)?])
}

fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn build(root: &Path, architecture: Option<Architecture>) -> anyhow::Result<PathBuf> {
    let architecture = architecture.map_or_else(Architecture::own, Ok)?;
    zig::build(root, &target(root), NAME, &architecture.triple())
}

/// Checks that the program requires no newer C library than the oldest hosts have.
fn runs_on_old_hosts(agent: &Agent) -> anyhow::Result<()> {
    let required = agent.glibc.unwrap_or_default();
    ensure!(
        required <= zig::GLIBC,
        "the agent requires glibc 2.{required}, and hosts may have 2.{}: find the symbol with `objdump -T`",
        zig::GLIBC
    );
    Ok(())
}

/// Runs a command to its end.
pub(crate) fn called(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_owned();
    let status = command
        .status()
        .with_context(|| format!("failed to start {}", Path::new(&name).display()))?;
    ensure!(status.success(), "{} ended with {status}", Path::new(&name).display());
    Ok(())
}

fn agent(root: &Path, program: &[u8]) -> anyhow::Result<Agent> {
    let read =
        |path: &str| fs::read(root.join(path)).with_context(|| format!("failed to read {path}"));
    let item = |path, content, mode, config| Item { path, content, mode, config };
    let unit = "/usr/lib/systemd/system/refit-agent.service";
    let items = vec![
        item("/usr/bin/refit-agent", program.to_vec(), 0o755, false),
        item(unit, read("deploy/agent/refit-agent.service")?, 0o644, false),
        item("/etc/refit-agent/agent.env", read("deploy/agent/package/agent.env")?, 0o600, true),
        item("/usr/share/doc/refit-agent/copyright", read("LICENSE")?, 0o644, false),
        item("/usr/share/doc/refit-agent/NOTICE", read("NOTICE")?, 0o644, false),
    ];
    Ok(Agent {
        items,
        architecture: architecture(program)?,
        glibc: glibc(program),
        libgcc: contains(program, b"libgcc_s.so.1\0"),
        time: time(root)?,
    })
}

/// The timestamp of files and packages.
fn time(root: &Path) -> anyhow::Result<u32> {
    let text = if let Ok(text) = env::var("SOURCE_DATE_EPOCH") {
        text
    } else {
        let git = Command::new("git")
            .args(["log", "-1", "--format=%ct"])
            .current_dir(root)
            .output()
            .context("failed to start git; set SOURCE_DATE_EPOCH")?;
        String::from_utf8_lossy(&git.stdout).into_owned()
    };
    text.trim().parse().with_context(|| {
        format!("invalid timestamp {text:?}; set SOURCE_DATE_EPOCH to seconds since 1970")
    })
}

/// The processor architecture of an ELF file.
fn architecture(program: &[u8]) -> anyhow::Result<Architecture> {
    let header = program.get(..20).filter(|head| head.starts_with(b"\x7fELF"));
    match header.and_then(|head| head.get(18..20)) {
        Some([0x3e, 0]) => Ok(Architecture::Amd64),
        Some([0xb7, 0]) => Ok(Architecture::Arm64),
        Some(other) => {
            bail!("invalid ELF machine type {other:02x?}, expected amd64 or arm64")
        }
        None => bail!("the program is not an ELF file"),
    }
}

fn contains(program: &[u8], text: &[u8]) -> bool {
    program.windows(text.len()).any(|window| window == text)
}

/// The newest minor version of glibc 2 that a program requires.
fn glibc(program: &[u8]) -> Option<u32> {
    const MARK: &[u8] = b"GLIBC_2.";
    let found = program.windows(MARK.len()).enumerate().filter_map(|(at, window)| {
        let rest = (window == MARK).then(|| program.get(at + MARK.len()..))??;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
        let text: String = digits.map(|&byte| char::from(byte)).collect();
        text.parse::<u32>().ok()
    });
    found.max()
}

/// Builds the Debian package with dpkg-deb.
fn deb(root: &Path, agent: &Agent, out: &Path) -> anyhow::Result<PathBuf> {
    let tree = out.join(".deb");
    if tree.exists() {
        fs::remove_dir_all(&tree)
            .with_context(|| format!("failed to remove {}", tree.display()))?;
    }
    let put = |path: &str, content: &[u8], mode: u32| -> anyhow::Result<()> {
        let path = tree.join(path.trim_start_matches('/'));
        let directory = path.parent().unwrap_or(&tree);
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&path, content))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .with_context(|| format!("failed to write {}", path.display()))
    };
    for item in &agent.items {
        put(item.path, &item.content, item.mode.into())?;
    }
    put("DEBIAN/control", control(agent).as_bytes(), 0o644)?;
    let configs = agent.items.iter().filter(|item| item.config);
    let mut configs: Vec<&str> = configs.map(|item| item.path).collect();
    // The file must end with a line feed; otherwise dpkg rejects it.
    configs.push("");
    put("DEBIAN/conffiles", configs.join("\n").as_bytes(), 0o644)?;
    for script in ["postinst", "prerm", "postrm"] {
        let content = fs::read(root.join("deploy/agent/package").join(script))
            .with_context(|| format!("failed to read deploy/agent/package/{script}"))?;
        put(&format!("DEBIAN/{script}"), &content, 0o755)?;
    }
    // New directories depend on the umask; set a fixed mode.
    for directory in directories(&tree)? {
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("failed to open {}", directory.display()))?;
    }
    let path = out.join(format!("{NAME}_{VERSION}-1_{}.deb", agent.architecture.deb()));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"])
        .args([tree.as_os_str(), path.as_os_str()])
        .env("SOURCE_DATE_EPOCH", agent.time.to_string())
        .stdout(std::io::stderr());
    called(&mut pack).context("failed to run `dpkg-deb` of dpkg")?;
    fs::remove_dir_all(&tree).with_context(|| format!("failed to remove {}", tree.display()))?;
    Ok(path)
}

fn directories(tree: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = vec![tree.to_owned()];
    let entries =
        fs::read_dir(tree).with_context(|| format!("failed to read {}", tree.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(directories(&path)?);
        }
    }
    Ok(found)
}

fn control(agent: &Agent) -> String {
    let bytes: usize = agent.items.iter().map(|item| item.content.len()).sum();
    let libc = agent.glibc.map_or_else(String::new, |minor| format!("libc6 (>= 2.{minor}), "));
    let libgcc = if agent.libgcc { "libgcc-s1, " } else { "" };
    format!(
        "Package: {NAME}\nVersion: {VERSION}-1\nArchitecture: {}\nMaintainer: Refit\n\
         Installed-Size: {}\nDepends: {libc}{libgcc}systemd (>= 240)\nSection: admin\nPriority: optional\n\
         Description: {SUMMARY}\n {DESCRIPTION}\n",
        agent.architecture.deb(),
        bytes.div_ceil(1024)
    )
}

/// Builds the rpm package.
fn rpm(root: &Path, agent: &Agent, out: &Path) -> anyhow::Result<PathBuf> {
    let script = |name: &str| {
        fs::read_to_string(root.join("deploy/agent/package").join(name))
            .with_context(|| format!("failed to read deploy/agent/package/{name}"))
    };
    let config =
        BuildConfig::v4().compression(CompressionWithLevel::Gzip(9)).source_date(agent.time);
    let mut builder =
        PackageBuilder::new(NAME, VERSION, "Apache-2.0", agent.architecture.rpm(), SUMMARY);
    builder
        .using_config(config)
        .release("1")
        .description(DESCRIPTION)
        .build_host("refit")
        .post_install_script(script("post")?)
        .pre_uninstall_script(script("preun")?)
        .requires(Dependency::greater_eq("systemd", "240"));
    if let Some(minor) = agent.glibc {
        builder.requires(Dependency::any(format!("libc.so.6(GLIBC_2.{minor})(64bit)")));
    }
    for item in &agent.items {
        let options = FileOptions::new(item.path).permissions(item.mode);
        let options = if item.config { options.config().noreplace() } else { options };
        builder.with_file_contents(item.content.clone(), options)?;
    }
    let path = out.join(format!("{NAME}-{VERSION}-1.{}.rpm", agent.architecture.rpm()));
    let package = builder.build().context("failed to build the .rpm")?;
    package.write_file(&path).with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(glibc: &str) -> Vec<u8> {
        let mut program = b"\x7fELF".to_vec();
        program.resize(18, 0);
        program.extend([0x3e, 0]);
        program.extend(format!("GLIBC_2.4\0{glibc}\0GLIBC_2.17\0").as_bytes());
        program
    }

    #[test]
    fn processor_and_c_library_are_read_from_the_program() {
        let made = program("GLIBC_2.34");
        assert_eq!(architecture(&made).unwrap(), Architecture::Amd64);
        assert_eq!(glibc(&made), Some(34));
        assert_eq!(glibc(b"static"), None);
        assert!(architecture(b"#!/bin/sh").is_err());
    }

    #[test]
    fn a_package_that_old_hosts_cannot_run_is_not_built() {
        let agent = |glibc| agent(&crate::root(), &program(glibc)).unwrap();
        assert!(runs_on_old_hosts(&agent("GLIBC_2.28")).is_ok());
        let error = runs_on_old_hosts(&agent("GLIBC_2.29")).unwrap_err().to_string();
        assert!(error.contains("requires glibc 2.29"), "{error}");
    }

    #[test]
    fn a_package_requires_the_libraries_of_its_program() {
        let own = agent(&crate::root(), &program("GLIBC_2.28")).unwrap();
        assert!(control(&own).contains("\nDepends: libc6 (>= 2.28), systemd (>= 240)\n"));
        let with_libgcc = program("GLIBC_2.28\0libgcc_s.so.1");
        let with_libgcc = agent(&crate::root(), &with_libgcc).unwrap();
        assert!(control(&with_libgcc).contains("\nDepends: libc6 (>= 2.28), libgcc-s1, systemd"));
    }

    #[test]
    fn the_same_program_makes_the_same_packages() {
        let root = crate::root();
        let agent = Agent { time: 1_700_000_000, ..agent(&root, &program("GLIBC_2.34")).unwrap() };
        let made: Vec<[Vec<u8>; 2]> = (0..2)
            .map(|_| {
                let out = tempfile::tempdir().unwrap();
                let rpm = fs::read(rpm(&root, &agent, out.path()).unwrap()).unwrap();
                let found = Command::new("dpkg-deb").arg("--version").output().is_ok();
                let deb = if found {
                    fs::read(deb(&root, &agent, out.path()).unwrap()).unwrap()
                } else {
                    Vec::new()
                };
                [rpm, deb]
            })
            .collect();
        assert!(made[0] == made[1]);
    }

    #[test]
    fn a_package_of_rpm_holds_what_it_should() {
        let root = crate::root();
        let agent = agent(&root, &program("GLIBC_2.34")).unwrap();
        let out = tempfile::tempdir().unwrap();
        let path = rpm(&root, &agent, out.path()).unwrap();
        let package = rpm::Package::open(path).unwrap();
        let metadata = &package.metadata;
        let paths = metadata.get_file_paths().unwrap();
        assert!(paths.contains(&PathBuf::from("/usr/bin/refit-agent")), "{paths:?}");
        let requires = metadata.get_requires().unwrap();
        let libc = "libc.so.6(GLIBC_2.34)(64bit)";
        assert!(requires.iter().any(|needs| needs.name == libc), "{requires:?}");
    }

    #[test]
    fn the_packaged_unit_starts_the_packaged_program() {
        let agent = agent(&crate::root(), &program("GLIBC_2.34")).unwrap();
        let unit = agent.items.iter().find(|item| item.path.ends_with(".service"));
        let unit = String::from_utf8(unit.unwrap().content.clone()).unwrap();
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart="));
        assert!(agent.items.iter().any(|item| Some(item.path) == start));
    }

    /// Runs a maintainer script on a simulated host, and returns its enable and disable calls to
    /// systemd.
    fn systemctl_calls(root: &Path, script: &str, arguments: &[&str]) -> Vec<String> {
        use std::os::unix::fs::PermissionsExt as _;
        let (bin, log) = (root.join("bin"), root.join("log"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(root.join("var/lib")).unwrap();
        let fake = "#!/bin/sh\necho \"$1\" >> \"$LOG\"\n\
            case $1 in enable) : > \"$LOG.on\" ;; disable) rm -f \"$LOG.on\" ;;\n\
            is-enabled) [ -e \"$LOG.on\" ] ;; esac\n";
        let systemctl = bin.join("systemctl");
        fs::write(&systemctl, fake).unwrap();
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&log, "").unwrap();
        let script = crate::root().join("deploy/agent/package").join(script);
        let status = Command::new("/bin/sh")
            .arg(script)
            .args(arguments)
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("LOG", &log)
            .env("DPKG_ROOT", root)
            .status();
        assert!(status.unwrap().success());
        let text = fs::read_to_string(log).unwrap();
        let enabling = |word: &&str| ["enable", "disable"].contains(word);
        text.lines().filter(enabling).map(str::to_owned).collect()
    }

    #[test]
    fn a_reinstalled_package_is_enabled_again() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(systemctl_calls(root, "postinst", &["configure", ""]), ["enable"]);
        assert!(systemctl_calls(root, "prerm", &["upgrade", "2"]).is_empty());
        assert!(systemctl_calls(root, "postinst", &["configure", "1"]).is_empty(), "an upgrade");
        assert_eq!(systemctl_calls(root, "prerm", &["remove"]), ["disable"]);
        assert_eq!(systemctl_calls(root, "postinst", &["configure", "1"]), ["enable"]);
        // A service that the administrator disabled stays disabled.
        fs::remove_file(root.join("log.on")).unwrap();
        assert_eq!(systemctl_calls(root, "prerm", &["remove"]), ["disable"]);
        assert!(systemctl_calls(root, "postinst", &["configure", "1"]).is_empty());
    }
}
