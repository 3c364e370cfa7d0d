//! Tests of building bundles.

use std::{fs, io::Write as _, path::Path};

use crate::support::{World, deb, docker_archive, limits, tree};
use refit_bundle::{
    Digest, Error, Manifest,
    build::{self, BuildError, FileSpec, ImageSpec, PackageSpec, Spec},
    fetch::{Location, Wanted, peek, verify},
    manifest::{Architecture, FileKind, OsFamily},
};

#[test]
fn the_same_inputs_give_the_same_bytes_in_any_order() {
    let world = World::new();
    let (directory, built) = world.build("one");
    let mut spec = Spec { packages: world.packages(), ..world.spec() };
    spec.packages.reverse();
    spec.images.reverse();
    let again = build::build(&spec, &world.key, &world.path("two")).unwrap();
    assert_eq!(tree(&directory), tree(&world.path("two")));
    assert_eq!(built.manifest_sha256, again.manifest_sha256);
    assert_eq!(built.artifact, again.artifact);
}

#[test]
fn the_manifest_lists_the_contents() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let bytes = fs::read(directory.join("refit-bundle.json")).unwrap();
    assert_eq!(Manifest::parse(&bytes).unwrap(), built.manifest);
    assert_eq!(Digest::of(&bytes), built.manifest_sha256);
    let paths: Vec<_> = built.manifest.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["os/os.cosi", "packages/kubeadm.deb", "packages/kubelet.deb"]);
    let package = built.manifest.files[2].package.as_ref().unwrap();
    assert_eq!((package.name.as_str(), package.version.as_str()), ("kubelet", "1.35.0-1.1"));
    let [app, other] = built.manifest.images.as_slice() else { panic!() };
    assert_eq!(app.name, "registry.example/app:1");
    let shared = app.blobs.iter().filter(|blob| other.blobs.contains(blob)).count();
    assert_eq!(shared, 1, "the layer that both have is there once");
    for (name, bytes) in tree(&directory.join("blobs/sha256")) {
        assert_eq!(Digest::of(&bytes).as_str(), name);
    }
}

#[test]
fn a_bundle_can_be_built_from_the_oci_layout_of_another() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let tar = world.path("b.tar");
    fs::write(&tar, pack(&directory)).unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&fs::read(&tar).unwrap()).unwrap();
    let packed = world.path("b.tar.gz");
    fs::write(&packed, gz.finish().unwrap()).unwrap();
    for (number, input) in [directory, tar, packed].into_iter().enumerate() {
        let spec = Spec {
            images: vec![ImageSpec { path: input.clone(), name: None }],
            ..Spec::new("v1.35.0".parse().unwrap(), Architecture::Amd64)
        };
        let output = world.path(&format!("from-{number}"));
        let copied = build::build(&spec, &world.key, &output).unwrap();
        assert_eq!(copied.manifest.images, built.manifest.images, "{}", input.display());
    }
}

#[test]
fn a_spec_file_gives_the_same_bundle_as_flags() {
    let world = World::new();
    let text = "
kubernetesVersion: v1.35.0
architecture: amd64
osFamily: debian
packages:
- path: inputs/kubeadm.deb
- path: inputs/kubelet.deb
images:
- path: inputs/image.tar
- path: inputs/other.tar
osImages:
- path: inputs/os.cosi
";
    fs::write(world.path("bundle.yaml"), text).unwrap();
    let spec = Spec::load(&world.path("bundle.yaml")).unwrap();
    let built = build::build(&spec, &world.key, &world.path("b")).unwrap();
    assert_eq!(built.manifest_sha256, world.build("c").1.manifest_sha256);
    for (from, to, expected) in [
        ("osFamily: debian", "osFamily: windows", "osFamily"),
        ("images:", "pictures:", "pictures"),
        ("kubernetesVersion: v1.35.0\n", "", "kubernetesVersion"),
        ("kubernetesVersion: v1.35.0\n", "kubernetesVersion: v1\napiVersion: x/v9\n", "x/v9"),
    ] {
        fs::write(world.path("bad.yaml"), text.replace(from, to)).unwrap();
        let error = Spec::load(&world.path("bad.yaml")).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("bad.yaml"), "{error}");
    }
}

fn refused(world: &World, change: impl FnOnce(&mut Spec, &Path)) -> BuildError {
    let mut spec = Spec { packages: world.packages(), ..world.spec() };
    change(&mut spec, &world.path("inputs"));
    let output = world.path("refused");
    let error = build::build(&spec, &world.key, &output).unwrap_err();
    assert!(!output.exists(), "nothing half done stays");
    let rest: Vec<_> =
        fs::read_dir(world.directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!rest.iter().any(|name| name.to_str().unwrap().starts_with(".refit")), "{rest:?}");
    error
}

#[test]
fn an_unsuitable_input_is_named_and_leaves_no_output() {
    type Change = fn(&mut Spec, &Path);
    let world = World::new();
    let message = |change: Change| refused(&world, change).to_string();
    let cases: [(&str, Change); 9] = [
        ("it is for amd64, the bundle is for arm64", |spec, _| {
            spec.architecture = Architecture::Arm64;
            spec.images.clear();
        }),
        ("the bundle for linux/arm64", |spec, _| {
            spec.architecture = Architecture::Arm64;
            spec.packages.clear();
        }),
        ("cannot install it", |spec, _| {
            spec.os_family = Some(OsFamily::Rhel);
        }),
        ("cannot install it", |spec, _| spec.os_family = None),
        ("differs from", |spec, inputs| {
            spec.files = ["X", "x"]
                .map(|name| FileSpec { path: inputs.join("os.cosi"), name: Some(name.into()) })
                .into();
        }),
        ("starts with '.'", |spec, inputs| {
            spec.files = vec![FileSpec { path: inputs.join("os.cosi"), name: Some("../x".into()) }];
        }),
        ("not a regular file", |spec, inputs| {
            std::os::unix::fs::symlink("/etc/passwd", inputs.join("link")).unwrap();
            spec.files = vec![FileSpec { path: inputs.join("link"), name: None }];
        }),
        ("name is set, but the archive has 2 images", |spec, inputs| {
            let path = inputs.parent().unwrap().join("two-images");
            spec.images = vec![ImageSpec { path, name: Some("a.example/b:c".into()) }];
        }),
        ("expected .deb", |spec, inputs| {
            spec.packages =
                vec![PackageSpec { path: inputs.join("os.cosi"), ..PackageSpec::default() }];
        }),
    ];
    world.build("two-images");
    for (expected, change) in cases {
        let found = message(change);
        assert!(found.contains(expected), "{expected}: {found}");
    }
}

#[test]
fn a_damaged_image_is_refused() {
    let world = World::new();
    let path = world.path("inputs/image.tar");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = refused(&world, |_, _| {}).to_string();
    assert!(error.contains("is damaged: expected sha256:"), "{error}");
}

#[test]
fn a_duplicate_image_counts_once_and_a_name_clash_is_refused() {
    let world = World::new();
    let twin = world.path("inputs/twin.tar");
    fs::write(&twin, docker_archive("registry.example/app:1", b"else")).unwrap();
    let error = refused(&world, |spec, _| {
        spec.images.push(ImageSpec { path: twin, name: None });
    });
    assert!(error.to_string().contains("a name occurs twice"), "{error}");
    let mut spec = Spec { packages: world.packages(), ..world.spec() };
    spec.images.push(spec.images[0].clone());
    let built = build::build(&spec, &world.key, &world.path("b")).unwrap();
    assert_eq!(built.manifest.images.len(), 2);
}

#[test]
fn an_existing_output_is_not_overwritten() {
    let world = World::new();
    fs::create_dir(world.path("b")).unwrap();
    let spec = Spec { packages: world.packages(), ..world.spec() };
    let error = build::build(&spec, &world.key, &world.path("b")).unwrap_err();
    assert!(matches!(error, BuildError::Exists { .. }));
}

#[tokio::test]
async fn a_bundle_verifies_and_a_changed_byte_anywhere_does_not() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let check = async |path: &Path| {
        verify(&Location::path(path), &world.keys, &limits(), &Wanted::default()).await
    };
    let head = check(&directory).await.unwrap();
    assert_eq!(head.manifest, built.manifest);
    let signed = head.signed;
    assert!(
        signed.comment.contains("Kubernetes v1.35.0 for debian on amd64"),
        "{}",
        signed.comment
    );
    for blob in built.manifest.blobs() {
        let path = directory.join("blobs/sha256").join(blob.sha256.as_str());
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        let at = bad.len() - 1;
        bad[at] ^= 0x80;
        fs::write(&path, &bad).unwrap();
        match check(&directory).await.unwrap_err() {
            Error::Content { file, expected, found } => {
                assert_eq!(file, built.manifest.name_of(&blob.sha256));
                assert_eq!((expected, found), (blob.sha256.clone(), Digest::of(&bad)));
            }
            other => panic!("{other}"),
        }
        fs::write(&path, &good[..at]).unwrap();
        assert!(matches!(check(&directory).await.unwrap_err(), Error::Size { .. }));
        fs::remove_file(&path).unwrap();
        assert!(matches!(check(&directory).await.unwrap_err(), Error::Missing { .. }));
        fs::write(&path, good).unwrap();
    }
    assert!(check(&directory).await.is_ok());
}

#[test]
fn files_keep_their_kind() {
    let world = World::new();
    let mut spec = Spec { packages: world.packages(), ..world.spec() };
    fs::write(world.path("inputs/x.deb"), deb("x", 3)).unwrap();
    spec.files = vec![FileSpec { path: world.path("inputs/x.deb"), name: Some("a/b.deb".into()) }];
    let built = build::build(&spec, &world.key, &world.path("b")).unwrap();
    let file = built.manifest.files.iter().find(|file| file.path == "files/a/b.deb").unwrap();
    assert_eq!((file.kind, &file.package), (FileKind::File, &None));
}

/// Packs a directory with an ordinary tar program.
fn pack(directory: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir_all("", directory).unwrap();
    builder.into_inner().unwrap()
}

#[tokio::test]
async fn a_bundle_in_one_file_is_refused_with_what_to_do() {
    let world = World::new();
    let spec = Spec { packages: world.packages(), ..world.spec() };
    let error = build::build(&spec, &world.key, &world.path("b.tar")).unwrap_err();
    assert!(error.to_string().contains("choose a name without .tar"), "{error}");
    assert!(!world.path("b.tar").exists());
    let (directory, _) = world.build("b");
    let packed = world.path("packed.tar");
    fs::write(&packed, pack(&directory)).unwrap();
    let error = peek(&Location::path(&packed), &limits()).await.unwrap_err();
    assert!(error.to_string().contains("unpack the tar"), "{error}");
    assert_eq!(error.reason(), "BundleLocationInvalid");
}
