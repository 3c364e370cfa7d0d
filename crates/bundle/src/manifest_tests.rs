use proptest::prelude::*;

use super::*;

fn digest(of: &str) -> Digest {
    Digest::of(of.as_bytes())
}

fn deb(name: &str) -> File {
    File {
        kind: FileKind::Package,
        package: Some(Package {
            architecture: "amd64".into(),
            format: PackageFormat::Deb,
            name: name.into(),
            version: "1.35.0-1.1".into(),
        }),
        path: format!("packages/{name}_1.35.0-1.1_amd64.deb"),
        sha256: digest(name),
        size: 10,
    }
}

fn image(name: &str) -> Image {
    let mut blobs =
        vec![Blob { sha256: digest("layer"), size: 7 }, Blob { sha256: digest(name), size: 3 }];
    blobs.sort();
    Image {
        blobs,
        manifest: digest(name),
        media_type: crate::images::OCI_MANIFEST.into(),
        name: name.into(),
    }
}

fn good() -> Manifest {
    Manifest {
        api_version: API_VERSION.into(),
        architecture: Architecture::Amd64,
        files: vec![deb("kubeadm"), deb("kubelet")],
        images: vec![image("a/b:1"), image("a/b:2")],
        kubernetes_version: "v1.35.0".parse().unwrap(),
        os_family: OsFamily::Debian,
    }
}

fn problem(change: impl FnOnce(&mut Manifest)) -> String {
    let mut manifest = good();
    change(&mut manifest);
    Manifest::parse(&manifest.to_canonical()).unwrap_err().to_string()
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let manifest = good();
    assert_eq!(Manifest::parse(&manifest.to_canonical()).unwrap(), manifest);
    assert_eq!(manifest.blobs().len(), 5, "the shared layer counts once");
    assert_eq!(manifest.total_size(), 10 + 10 + 7 + 3 + 3);
    assert_eq!(manifest.image_size(), 7 + 3 + 3);
    assert_eq!(manifest.name_of(&digest("kubelet")), "packages/kubelet_1.35.0-1.1_amd64.deb");
    assert!(manifest.name_of(&digest("layer")).ends_with("of image a/b:1"));
}

#[test]
fn every_list_sorts_itself_into_the_one_order() {
    let mut shuffled = good();
    shuffled.files.reverse();
    shuffled.images.reverse();
    shuffled.images.iter_mut().for_each(|image| image.blobs.reverse());
    shuffled.sort();
    assert_eq!(shuffled, good());
}

#[test]
fn the_same_content_in_other_bytes_is_refused() {
    let canonical = good().to_canonical();
    let pretty = serde_json::to_vec_pretty(&good()).unwrap();
    assert!(matches!(Manifest::parse(&pretty), Err(ManifestError::NotCanonical)));
    let mut longer = canonical.clone();
    longer.push(b'\n');
    assert!(matches!(Manifest::parse(&longer), Err(ManifestError::NotCanonical)));
    let text = String::from_utf8(canonical).unwrap();
    let twice = text.replacen("\"images\"", "\"files\":[],\"images\"", 1);
    assert!(Manifest::parse(twice.as_bytes()).is_err());
    let unknown = text.replacen("\"images\"", "\"hooks\":[],\"images\"", 1);
    let error = Manifest::parse(unknown.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("unknown field `hooks`"), "{error}");
}

#[test]
fn a_newer_format_is_reported_as_such() {
    let text = String::from_utf8(good().to_canonical()).unwrap();
    let newer = text.replace("/v1\"", "/v2\"").replace("\"images\"", "\"pictures\"");
    let error = Manifest::parse(newer.as_bytes()).unwrap_err();
    assert!(matches!(error, ManifestError::Version { found } if found == "bundle.refit.dev/v2"));
}

#[test]
fn an_inconsistent_manifest_names_the_field() {
    type Change = fn(&mut Manifest);
    let cases: [(&str, Change); 13] = [
        ("is empty", |m| {
            m.files.clear();
            m.images.clear();
        }),
        ("two sizes", |m| m.files[0].sha256 = digest("layer")),
        ("exceed the limit of 8589934591", |m| m.files[0].size = u64::MAX),
        ("starts with '.'", |m| {
            m.files[0].path = "packages/../shadow".into();
        }),
        ("contains the character", |m| {
            m.files[0].path = "packages/a;b".into();
        }),
        ("expected a file of kind Package in packages/", |m| {
            m.files[0].path = "os/kubeadm.deb".into();
        }),
        ("expected a file of kind Package in packages/", |m| {
            m.files[0].path = "packages".into();
        }),
        ("package, version and architecture are missing", |m| m.files[0].package = None),
        ("cannot install it", |m| m.os_family = OsFamily::Rhel),
        ("it is for amd64", |m| m.architecture = Architecture::Arm64),
        ("not sorted by path", |m| m.files.reverse()),
        ("a name occurs twice", |m| m.images[0].name = "a/b:2".into()),
        ("not among the blobs", |m| {
            m.images[0].manifest = digest("other");
        }),
    ];
    for (expected, change) in cases {
        let found = problem(change);
        assert!(found.contains(expected), "{expected}: {found}");
    }
}

#[test]
fn a_version_that_reads_as_an_option_is_refused() {
    let found = problem(|m| {
        if let Some(package) = &mut m.files[0].package {
            package.version = "-oDPkg::Pre-Invoke=x".into();
        }
    });
    assert!(found.contains("invalid name, version or architecture"), "{found}");
}

#[test]
fn the_os_family_is_read_from_os_release() {
    let family = OsFamily::of_os_release;
    assert_eq!(family("NAME=x\nID=ubuntu\nID_LIKE=debian\n"), Some(OsFamily::Debian));
    assert_eq!(family("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"), Some(OsFamily::Rhel));
    assert_eq!(family("ID=azurelinux\nID_LIKE=fedora\n"), Some(OsFamily::AzureLinux));
    assert_eq!(family("ID=nixos\n"), None);
    assert_eq!(family(""), None);
}

proptest! {
    #[test]
    fn random_bytes_never_panic_and_never_pass(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Manifest::parse(&bytes).is_err());
    }

    #[test]
    fn a_changed_byte_passes_only_as_another_valid_manifest(at in 0usize..1000, byte in any::<u8>()) {
        let mut bytes = good().to_canonical();
        let at = at % bytes.len();
        let before = bytes[at];
        bytes[at] = byte;
        if let Ok(read) = Manifest::parse(&bytes) {
            prop_assert_eq!(read == good(), byte == before);
            prop_assert_eq!(read.to_canonical(), bytes);
        }
    }

    #[test]
    fn a_path_that_passes_stays_in_its_directory(path in "[a-zA-Z./\\-_ \\\\0]{0,20}") {
        if names::check_path(&path).is_ok() {
            let joined = std::path::Path::new("/stage").join(&path);
            prop_assert!(joined.starts_with("/stage"));
            let plain = |c: std::path::Component<'_>| !matches!(c, std::path::Component::ParentDir);
            prop_assert!(joined.components().all(plain));
        }
    }
}
