//! Package files for dnf: a directory of them as a repository.
//!
//! A directory of `.rpm`s is not a repository: dnf needs repository metadata, which a bundle does
//! not have and a host has no program to create. The data for resolving dependencies is in the
//! package headers, so the metadata is generated from them, next to links to the files.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::{Want, apt_offline::digest, package_files};
use crate::host::{
    Program, Site,
    files::atomic::{self, Access},
    work::WorkError,
};

/// The file that makes a directory a repository.
const REPOMD: &str = "repodata/repomd.xml";
/// Prints a package on a line of its own, then what it provides, requires, conflicts with and
/// obsoletes, and its files.
const QUERY: &str = "@\\t%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\t%{ARCH}\\n\
    [P\\t%{PROVIDENAME}\\t%{PROVIDEFLAGS:depflags}\\t%{PROVIDEVERSION}\\n]\
    [R\\t%{REQUIRENAME}\\t%{REQUIREFLAGS:depflags}\\t%{REQUIREVERSION}\\n]\
    [C\\t%{CONFLICTNAME}\\t%{CONFLICTFLAGS:depflags}\\t%{CONFLICTVERSION}\\n]\
    [O\\t%{OBSOLETENAME}\\t%{OBSOLETEFLAGS:depflags}\\t%{OBSOLETEVERSION}\\n]\
    [F\\t%{FILENAMES}\\n]";
/// Kinds of relations, in the order of the format.
const RELATIONS: [(&str, &str); 4] =
    [("P", "provides"), ("R", "requires"), ("C", "conflicts"), ("O", "obsoletes")];

/// A package file and the data of its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackageFile {
    path: PathBuf,
    name: String,
    epoch: String,
    version: String,
    release: String,
    arch: String,
    /// Kind, name, comparison and version.
    relations: Vec<[String; 4]>,
    files: Vec<String>,
}

/// The repository for a directory: the directory itself if it is a repository, otherwise a new one
/// with its packages.
pub(super) async fn repository(site: &Site, directory: &Path) -> Result<PathBuf, WorkError> {
    if directory.join(REPOMD).exists() {
        return Ok(directory.to_owned());
    }
    let files =
        package_files(directory, "rpm").map_err(|error| WorkError::file(directory, &error))?;
    if files.is_empty() {
        return Err(WorkError::permanent(format!(
            "packages.path {} contains neither {REPOMD} nor an .rpm file",
            directory.display()
        )));
    }
    make(site, &read(site, files).await?)
}

/// A repository with the packages of all bundles on the host, if it has all wanted packages. A
/// rollback then needs no server.
pub(super) async fn of_bundles(site: &Site, wants: &[Want]) -> Result<Option<PathBuf>, WorkError> {
    let bundles = site.state().join("bundle").join("bundles");
    let mut files = Vec::new();
    for bundle in fs::read_dir(bundles).into_iter().flatten().flatten() {
        files.extend(package_files(&bundle.path().join("packages"), "rpm").unwrap_or_default());
    }
    files.sort();
    of_files(site, files, wants).await
}

/// A repository with these packages, if it has all wanted packages.
pub(super) async fn of_files(
    site: &Site,
    files: Vec<PathBuf>,
    wants: &[Want],
) -> Result<Option<PathBuf>, WorkError> {
    if files.is_empty() {
        return Ok(None);
    }
    let packages = read(site, files).await?;
    let has = |want: &Want| {
        packages.iter().any(|file| {
            file.name == want.name
                && want.version.matches(&format!("{}-{}", file.version, file.release))
        })
    };
    if wants.iter().all(has) { make(site, &packages).map(Some) } else { Ok(None) }
}

async fn read(site: &Site, paths: Vec<PathBuf>) -> Result<Vec<PackageFile>, WorkError> {
    let mut files = Vec::new();
    for path in paths {
        let shown = path.display().to_string();
        let query = ["--query", "--package", "--nosignature", "--queryformat", QUERY, &shown];
        let header = site.ask(Program::Rpm, query).await?;
        files.push(parse(&path, &header).ok_or_else(|| {
            WorkError::permanent(format!(
                "rpm cannot read the header of {shown}: the file may be incomplete; copy it to the host \
                 again"
            ))
        })?);
    }
    Ok(files)
}

fn parse(path: &Path, header: &str) -> Option<PackageFile> {
    let mut lines = header.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let head = lines.by_ref().find(|line| line.first() == Some(&"@"))?;
    let [_, name, epoch, version, release, arch] = head.as_slice() else {
        return None;
    };
    let mut file = PackageFile {
        path: path.to_owned(),
        name: (*name).to_owned(),
        epoch: (*epoch).to_owned(),
        version: (*version).to_owned(),
        release: (*release).to_owned(),
        arch: (*arch).to_owned(),
        relations: Vec::new(),
        files: Vec::new(),
    };
    for line in lines {
        match line.as_slice() {
            // rpm prints this for an empty list.
            [_, "(none)", ..] => {}
            // rpm itself provides these features, not a package.
            ["R", name, ..] if name.starts_with("rpmlib(") => {}
            ["F", path] => file.files.push((*path).to_owned()),
            [kind, name, compare, version] => {
                file.relations.push([kind, name, compare.trim(), version].map(str::to_owned));
            }
            _ => {}
        }
    }
    Some(file)
}

/// Writes the repository and returns its path.
fn make(site: &Site, packages: &[PackageFile]) -> Result<PathBuf, WorkError> {
    let repository = site.state().join("dnf").join("repository");
    let failed = |error: std::io::Error| WorkError::file(&repository, &error);
    if let Err(error) = fs::remove_dir_all(&repository)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(failed(error));
    }
    fs::create_dir_all(repository.join("repodata")).map_err(failed)?;
    let mut text = String::new();
    for (number, package) in packages.iter().enumerate() {
        // Two bundles may have files with the same name.
        let name = format!("{number}-{}-{}.rpm", package.name, package.arch);
        symlink(&package.path, repository.join(&name)).map_err(failed)?;
        text += &entry(package, &name)?;
    }
    let primary = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <metadata xmlns=\"http://linux.duke.edu/metadata/common\" \
         xmlns:rpm=\"http://linux.duke.edu/metadata/rpm\" packages=\"{}\">\n{text}</metadata>\n",
        packages.len()
    );
    let path = repository.join("repodata/primary.xml");
    let access = Access::of_mode(0o644);
    atomic::replace(&path, primary.as_bytes(), access)?;
    let (size, sum) = digest(&path)?;
    let repomd = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <repomd xmlns=\"http://linux.duke.edu/metadata/repo\">\n\
         <revision>0</revision>\n<data type=\"primary\">\n\
         <checksum type=\"sha256\">{sum}</checksum>\n\
         <location href=\"repodata/primary.xml\"/>\n<timestamp>0</timestamp>\n\
         <size>{size}</size>\n</data>\n</repomd>\n"
    );
    atomic::replace(&repository.join(REPOMD), repomd.as_bytes(), access)?;
    Ok(repository)
}

/// The entry of a package in the repository metadata.
fn entry(package: &PackageFile, location: &str) -> Result<String, WorkError> {
    let (size, sum) = digest(&package.path)?;
    let mut text = format!(
        "<package type=\"rpm\"><name>{}</name><arch>{}</arch>\
         <version epoch=\"{}\" ver=\"{}\" rel=\"{}\"/>\
         <checksum type=\"sha256\" pkgid=\"YES\">{sum}</checksum>\
         <summary/><description/><packager/><url/><time file=\"0\" build=\"0\"/>\
         <size package=\"{size}\" installed=\"0\" archive=\"0\"/>\
         <location href=\"{}\"/><format>",
        escape(&package.name),
        escape(&package.arch),
        escape(&package.epoch),
        escape(&package.version),
        escape(&package.release),
        escape(location),
    );
    for (kind, tag) in RELATIONS {
        let of_kind = package.relations.iter().filter(|relation| relation[0] == kind);
        let entries: String = of_kind.map(relation).collect();
        if !entries.is_empty() {
            let _ = write!(text, "<rpm:{tag}>{entries}</rpm:{tag}>");
        }
    }
    for file in package.files.iter().filter(|file| may_be_required(file)) {
        let _ = write!(text, "<file>{}</file>", escape(file));
    }
    text += "</format></package>\n";
    Ok(text)
}

fn relation([_, name, compare, version]: &[String; 4]) -> String {
    let flags = match compare.as_str() {
        "=" => "EQ",
        "<" => "LT",
        "<=" => "LE",
        ">" => "GT",
        ">=" => "GE",
        _ => return format!("<rpm:entry name=\"{}\"/>", escape(name)),
    };
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (ver, rel) = match rest.rsplit_once('-') {
        Some((ver, rel)) => (ver, format!(" rel=\"{}\"", escape(rel))),
        None => (rest, String::new()),
    };
    format!(
        "<rpm:entry name=\"{}\" flags=\"{flags}\" epoch=\"{}\" ver=\"{}\"{rel}/>",
        escape(name),
        escape(epoch),
        escape(ver)
    )
}

/// Whether packages may require a file by name. The repository metadata lists only files in these
/// directories.
fn may_be_required(file: &str) -> bool {
    file.starts_with("/etc/") || file.contains("/bin/") || file.contains("/sbin/")
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            c if c.is_control() => {}
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_becomes_repository_metadata() {
        let header = "@\tkubeadm\t0\t1.35.0\t1.1\tx86_64\nP\tkubeadm\t=\t1.35.0-1.1\n\
            R\tcri-tools\t>=\t1:1.30.0\nR\t/bin/sh\t\t\nR\trpmlib(X)\t<=\t4-1\n\
            C\t(none)\t(none)\t(none)\nF\t/usr/bin/kubeadm\nF\t/usr/share/doc/a&b\n";
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k.rpm");
        fs::write(&path, "x").unwrap();
        let package = parse(&path, header).unwrap();
        assert_eq!(package.relations.len(), 3);
        let text = entry(&package, "0-k.rpm").unwrap();
        for part in [
            "<version epoch=\"0\" ver=\"1.35.0\" rel=\"1.1\"/>",
            "<rpm:provides><rpm:entry name=\"kubeadm\" flags=\"EQ\" epoch=\"0\" ver=\"1.35.0\" \
             rel=\"1.1\"/></rpm:provides>",
            "<rpm:requires><rpm:entry name=\"cri-tools\" flags=\"GE\" epoch=\"1\" \
             ver=\"1.30.0\"/><rpm:entry name=\"/bin/sh\"/></rpm:requires>",
            "<file>/usr/bin/kubeadm</file></format>",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("conflicts") && !text.contains("rpmlib"));
        assert_eq!(escape("a<\"&\n"), "a&lt;&quot;&amp;");
        assert!(parse(&path, "error: not an rpm package").is_none());
    }

    #[tokio::test]
    async fn a_package_without_a_readable_header_is_reported_with_its_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let silent = crate::host::Tool { path: "/bin/true".to_owned(), ..Default::default() };
        let site = Site::new(directory.path()).with_tool(Program::Rpm, silent);
        fs::write(directory.path().join("kubeadm.rpm"), "").unwrap();
        let error = repository(&site, directory.path()).await.unwrap_err();
        assert!(error.message.contains("kubeadm.rpm: the file may be incomplete"), "{error}");
        assert!(error.message.ends_with("copy it to the host again"), "{error}");
    }
}
