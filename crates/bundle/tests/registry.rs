//! Bundles from a registry that asks for logins or gives another artifact.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here fails the test")]

mod support;

use std::fs;

use refit_bundle::{Digest, Error};
use support::{Reply, Server, World, registry};

#[tokio::test]
async fn a_registry_that_wants_a_token_gets_one() {
    let world = World::new();
    let (directory, built) = world.build("b");
    // The address is known only once it listens, so the challenge leads back by a second server.
    let tokens = Server::new(|_| Reply::ok(br#"{"access_token":"good"}"#.to_vec())).await;
    let challenge: &'static str = format!(
        r#"Bearer realm="http://{}/token",service="mirror",scope="repository:mirror/bundle:pull""#,
        tokens.address
    )
    .leak();
    let server = registry(&directory, Some(challenge)).await;
    let location =
        format!("oci+http://{}/mirror/bundle@{}", server.address, built.artifact.to_oci());
    world.stage(&location, "s").await.unwrap();
    let asked = tokens.asked();
    assert_eq!(asked.len(), 1, "one token for all blobs");
    assert!(
        asked[0].path.contains("service=mirror&scope=repository:mirror/bundle:pull"),
        "{}",
        asked[0].path
    );
    let kerberos = registry(&directory, Some("Negotiate")).await;
    let location =
        format!("oci+http://{}/mirror/bundle@{}", kerberos.address, built.artifact.to_oci());
    let error = world.stage(&location, "t").await.unwrap_err().to_string();
    assert!(error.contains("a login that is not known"), "{error}");
}

#[tokio::test]
async fn a_registry_that_gives_another_artifact_is_found_out() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let server = registry(&directory, None).await;
    let other = Digest::of(b"other").to_oci();
    let location = format!("oci+http://{}/mirror/bundle@{other}", server.address);
    assert!(matches!(world.stage(&location, "s").await.unwrap_err(), Error::Missing { .. }));
    let artifact = directory.join("blobs/sha256").join(built.artifact.as_str());
    let changed =
        fs::read_to_string(&artifact).unwrap().replace("refit.bundle.v1", "refit.bundle.v2");
    fs::write(&artifact, changed).unwrap();
    let location = |version: &str| format!("oci+http://{}/mirror/bundle{version}", server.address);
    let by_digest = location(&format!("@{}", built.artifact.to_oci()));
    assert!(matches!(world.stage(&by_digest, "s").await.unwrap_err(), Error::Content { .. }));
    let error = world.stage(&location(":v1.35.0-debian-amd64"), "s").await.unwrap_err();
    assert!(error.to_string().contains("it is no bundle"), "{error}");
}
