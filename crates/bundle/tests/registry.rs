//! Bundles from a registry that requires a login or returns another artifact.

use std::fs;

use crate::support::{Reply, Server, World, registry};
use refit_bundle::{Digest, Error};

#[tokio::test]
async fn a_registry_that_wants_a_token_gets_one() {
    let world = World::new();
    let (directory, built) = world.build("b");
    // The server's address is known only once it listens, so the challenge points to a second
    // server.
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
    let requests = tokens.requests();
    assert_eq!(requests.len(), 1, "one token for all blobs");
    assert!(
        requests[0].path.contains("service=mirror&scope=repository:mirror/bundle:pull"),
        "{}",
        requests[0].path
    );
    let kerberos = registry(&directory, Some("Negotiate")).await;
    let location =
        format!("oci+http://{}/mirror/bundle@{}", kerberos.address, built.artifact.to_oci());
    let error = world.stage(&location, "t").await.unwrap_err().to_string();
    assert!(error.contains("unsupported authentication scheme"), "{error}");
}

#[tokio::test]
async fn a_registry_that_returns_another_artifact_is_detected() {
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
    assert!(error.to_string().contains("not a bundle"), "{error}");
}
