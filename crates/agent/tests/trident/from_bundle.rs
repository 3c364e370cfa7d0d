//! An OS image from a signed bundle.

use std::{collections::BTreeMap, fs, path::PathBuf};

use refit_agent::{
    OwnPaths,
    host::{Command, JobFile, NoSecrets, WorkError, carry_out},
};
use refit_bundle::{
    build::{self, FileSpec, SecretKey, Spec},
    manifest::Architecture,
};
use refit_kinds::refit::{BundleRef, FailureKind, HostStep, OsImageArgs};
use serde_json::json;

use crate::suite::Bench;

/// Builds a bundle with this image and makes the host trust its signer.
fn bundle_with_image(bench: &Bench) -> BundleRef {
    let directory = bench.directory.path();
    let file = directory.join("azl-3.cosi");
    fs::write(&file, "an image").unwrap();
    let architecture = Architecture::of_this_host().unwrap();
    let mut spec = Spec::new("v1.35.0".parse().unwrap(), architecture);
    let image = FileSpec { path: file, name: None };
    spec.os_images.push(image);
    let files = build::key::generate(&directory.join("release"), None).unwrap();
    let output = directory.join("bundle");
    let key = SecretKey::load(&files.secret, None).unwrap();
    build::build(&spec, &key, &output).unwrap();
    let keys = bench.site.path("/etc/refit/keys");
    fs::create_dir_all(&keys).unwrap();
    fs::copy(files.public, keys.join("release.pub")).unwrap();
    BundleRef { location: output.display().to_string(), ..BundleRef::default() }
}

pub(crate) fn an_image_of_a_bundle_is_staged_and_finalized_without_a_server(bench: &Bench) {
    let bundle = bundle_with_image(bench);
    let image = OsImageArgs { url: "bundle:///os/azl-3.cosi".to_owned(), ..bench.image.clone() };
    fs::create_dir_all(bench.site.units()).unwrap();
    let job = |step: &str, command| JobFile {
        plan: "p".into(),
        unit: format!("refit-{step}"),
        step: step.to_owned(),
        command,
        state: bench.site.state().to_owned(),
        kubeconfig: PathBuf::new(),
        namespace: String::new(),
        own: OwnPaths::default(),
        proxies: BTreeMap::new(),
    };
    let run = |job: &JobFile| -> Result<(), WorkError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(carry_out(&bench.site, job, &NoSecrets))
    };
    let stage = job(
        "stage",
        Command::Step(HostStep::OsImageStage { os_image: image.clone(), bundle: Some(bundle) }),
    );
    // The bundle is on the host's own disk, so the stand-in learns the URL of the image only after
    // staging.
    assert!(run(&stage).unwrap_err().message.contains("Failed to load COSI"));
    let file = fs::read_dir(bench.site.state().join("bundle/bundles"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("os/azl-3.cosi"))
        .find(|path| path.is_file())
        .unwrap();
    let url = format!("file://{}", file.display());
    bench.change(|host| {
        host.images.insert(url.clone(), image.sha384.clone());
    });
    run(&stage).unwrap();
    let found = &bench.host().spec["image"];
    assert_eq!(*found, json!({ "url": url, "sha384": image.sha384 }));
    let finalize =
        job("finalize", Command::Step(HostStep::OsImageFinalize { os_image: image.clone() }));
    fs::rename(&file, file.with_extension("gone")).unwrap();
    let error = run(&finalize).unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    fs::rename(file.with_extension("gone"), &file).unwrap();
    run(&finalize).unwrap();
    bench.boot();
    assert_eq!(bench.host().booted, "volume-b");
}
