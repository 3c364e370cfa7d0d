use std::io::Write as _;

use proptest::prelude::*;

use super::*;
use crate::manifest::Architecture;

const CONTROL: &str =
    "Package: kubelet\nVersion: 1.35.0-1.1\nArchitecture: amd64\nDescription: x\n more: y\n";

fn tar_of(name: &str, text: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    builder.append_data(&mut header, name, text.as_bytes()).unwrap();
    builder.into_inner().unwrap()
}

fn ar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, content) in members {
        writeln!(bytes, "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, 0, 100_644, content.len())
            .unwrap();
        bytes.extend_from_slice(content);
        if content.len() % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    bytes
}

fn read_bytes(name: &str, bytes: &[u8]) -> Result<Package, BuildError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    let spec = Spec::new("v1.35.0".parse().unwrap(), Architecture::Amd64);
    read(&path, &PackageSpec::default(), &spec)
}

fn rpm_bytes(tags: &[(u32, &str)], epoch: Option<u32>) -> Vec<u8> {
    let mut store = Vec::new();
    let mut index = Vec::new();
    let mut entry = |tag: u32, kind: u32, offset: usize| {
        for number in [tag, kind, u32::try_from(offset).unwrap(), 1] {
            index.extend(number.to_be_bytes());
        }
    };
    for (tag, text) in tags {
        entry(*tag, 6, store.len());
        store.extend_from_slice(text.as_bytes());
        store.push(0);
    }
    if let Some(epoch) = epoch {
        entry(tag::EPOCH, 4, store.len());
        store.extend(epoch.to_be_bytes());
    }
    let mut bytes = vec![0xed, 0xab, 0xee, 0xdb];
    bytes.resize(96, 0);
    let intro = |entries: usize, store: usize| {
        let mut intro = vec![0x8e, 0xad, 0xe8, 0x01, 0, 0, 0, 0];
        intro.extend(u32::try_from(entries).unwrap().to_be_bytes());
        intro.extend(u32::try_from(store).unwrap().to_be_bytes());
        intro
    };
    bytes.extend(intro(0, 3));
    bytes.extend([1, 2, 3]);
    bytes.extend([0; 5]);
    bytes.extend(intro(index.len() / 16, store.len()));
    bytes.extend(index);
    bytes.extend(store);
    bytes
}

#[test]
fn a_deb_is_read_with_every_compression_of_its_control_file() {
    let tar = tar_of("./control", CONTROL);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&tar).unwrap();
    let gz = gz.finish().unwrap();
    for (name, member) in [("control.tar", &tar), ("control.tar.gz", &gz)] {
        let deb = ar(&[("debian-binary", b"2.0\n"), (name, member), ("data.tar.xz", b"...")]);
        let package = read_bytes("renamed.deb", &deb).unwrap();
        assert_eq!((package.name.as_str(), package.version.as_str()), ("kubelet", "1.35.0-1.1"));
        assert_eq!((package.architecture.as_str(), package.format), ("amd64", PackageFormat::Deb));
    }
}

#[test]
fn a_deb_that_dpkg_made_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("p/DEBIAN");
    fs::create_dir_all(&control).unwrap();
    fs::write(
        control.join("control"),
        "Package: kubeadm\nVersion: 1:1.35.0-1\nArchitecture: all\nMaintainer: n <n@example.com>\nDescription: x\n",
    )
    .unwrap();
    for compression in ["xz", "zstd", "gzip", "none"] {
        let path = directory.path().join(format!("{compression}.deb"));
        let built = std::process::Command::new("dpkg-deb")
            .arg(format!("-Z{compression}"))
            .args(["--root-owner-group", "--build"])
            .arg(directory.path().join("p"))
            .arg(&path)
            .output();
        // Without dpkg, only the test above covers .deb files.
        let Ok(built) = built else { return };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let spec = Spec::new("v1.35.0".parse().unwrap(), Architecture::Amd64);
        let package = read(&path, &PackageSpec::default(), &spec).unwrap();
        assert_eq!(
            (package.name.as_str(), package.version.as_str()),
            ("kubeadm", "1:1.35.0-1"),
            "{compression}"
        );
    }
}

#[test]
fn an_rpm_is_read_from_its_header() {
    let tags = [(1000, "kubelet"), (1001, "1.35.0"), (1002, "150500.1.1"), (1022, "x86_64")];
    let package = read_bytes("k.rpm", &rpm_bytes(&tags, None)).unwrap();
    assert_eq!(package.version, "1.35.0-150500.1.1");
    assert_eq!((package.name.as_str(), package.architecture.as_str()), ("kubelet", "x86_64"));
    let package = read_bytes("k.rpm", &rpm_bytes(&tags, Some(2))).unwrap();
    assert_eq!(package.version, "2:1.35.0-150500.1.1");
    assert!(read_bytes("k.rpm", &rpm_bytes(&tags[..3], None)).is_err());
}

#[test]
fn a_tarball_takes_name_and_version_from_the_spec_or_the_bundle() {
    let package = read_bytes("kubernetes-node-linux.tar.gz", b"").unwrap();
    assert_eq!(
        (package.name.as_str(), package.version.as_str()),
        ("kubernetes-node-linux", "1.35.0")
    );
    let error = read_bytes("notes.txt", b"").unwrap_err().to_string();
    assert!(error.contains("expected .deb"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(read_bytes("x.deb", &bytes).is_err());
        prop_assert!(read_bytes("x.rpm", &bytes).is_err());
    }

    #[test]
    fn a_truncated_or_changed_package_never_panics(cut in 0usize..900, at in 0usize..900, byte in any::<u8>()) {
        let deb = ar(&[("debian-binary", b"2.0\n"), ("control.tar", &tar_of("control", CONTROL))]);
        let tags = [(1000, "kubelet"), (1001, "1.35.0"), (1002, "1"), (1022, "x86_64")];
        for (name, mut bytes) in [("x.deb", deb), ("x.rpm", rpm_bytes(&tags, Some(1)))] {
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len().min(cut));
            let _ = read_bytes(name, &bytes);
        }
    }
}
