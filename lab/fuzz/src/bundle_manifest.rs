use refit_bundle::Manifest;

/// Parses the manifest of a bundle.
pub fn bundle_manifest(input: &[u8]) {
    if let Ok(manifest) = Manifest::parse(input) {
        assert_eq!(manifest.to_canonical(), input, "two encodings of one manifest");
        check(&manifest);
    }
    // The same content in canonical form: most inputs are refused for their form alone.
    if let Ok(mut manifest) = serde_json::from_slice::<Manifest>(input) {
        manifest.sort();
        match Manifest::parse(&manifest.to_canonical()) {
            Ok(parsed) => assert_eq!(parsed, manifest),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        check(&manifest);
    }
}

fn check(manifest: &Manifest) {
    let blobs = manifest.blobs();
    assert!(blobs.iter().all(|blob| !manifest.name_of(&blob.sha256).is_empty()));
    assert!(manifest.image_size() <= manifest.total_size());
}
