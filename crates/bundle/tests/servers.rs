//! Downloads from HTTP servers that cut connections, return errors and send wrong bytes.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{
    ReceivedRequest, Reply, Server, World, from_directory, leftovers, limits, noise, text, tree,
};
use refit_bundle::{
    Digest, Error,
    fetch::{self, Limits, Wanted, find},
};

#[tokio::test]
async fn an_interrupted_download_resumes_where_it_stopped() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let expected = tree(&world.stage(&text(&directory), "whole").await.unwrap().directory);
    for cut in [1_500, 4_096, 16_383, 16_384, 65_535, 65_536, 65_537] {
        let root = directory.clone();
        let server = Server::new(move |request| {
            let reply = from_directory(&root, request);
            let cut = request.path.contains("blobs").then_some(cut);
            Reply { cut, ..reply }
        })
        .await;
        let (staging, mut tries) = (format!("s{cut}"), 0);
        let staged = loop {
            tries += 1;
            match world.stage(&server.url(""), &staging).await {
                Ok(staged) => break staged,
                Err(error) => assert!(error.is_retriable() && tries < 200, "{error}"),
            }
        };
        assert_eq!(tree(&staged.directory), expected, "cut after {cut}");
        let bytes = |request: &ReceivedRequest| {
            request.range.map_or(0, |(from, to)| (to + 1 - from).min(cut))
        };
        let fetched: usize = server.requests().iter().map(bytes).sum();
        let total = usize::try_from(built.manifest.total_size()).unwrap();
        assert_eq!(fetched, total, "no byte is fetched twice, cut after {cut}");
    }
}

#[tokio::test]
async fn an_interrupted_head_is_an_error_and_leaves_nothing() {
    let world = World::new();
    let (directory, _) = world.build("b");
    for cut in [0, 1, 100, 511] {
        let root = directory.clone();
        let reply = move |request: &ReceivedRequest| Reply {
            cut: Some(cut),
            ..from_directory(&root, request)
        };
        let server = Server::new(reply).await;
        let error = world.stage(&server.url(""), "s").await.unwrap_err();
        assert!(error.is_retriable(), "{cut}: {error}");
        assert_eq!(leftovers(&world, "s"), [""; 0]);
    }
}

/// Whatever a server does, in any order: either the signed bundle is staged, or nothing.
#[tokio::test]
async fn random_server_errors_never_let_a_wrong_byte_through() {
    let world = World::new();
    let (directory, _) = world.build("b");
    // Everything except the signature file, which contains an untrusted line.
    let vouched = |directory: &Path| {
        let mut tree = tree(directory);
        tree.remove("refit-bundle.json.minisig");
        tree
    };
    let whole = world.stage(&text(&directory), "whole").await.unwrap();
    let expected = vouched(&whole.directory);
    for seed in 1..=12u64 {
        let root = directory.clone();
        let count = AtomicUsize::new(0);
        let server = Server::new(move |request| {
            let turn = count.fetch_add(1, Ordering::SeqCst) as u64;
            let [fault, at] = <[u8; 2]>::try_from(noise(seed * 1_000 + turn, 2)).unwrap();
            let whole = ReceivedRequest { range: None, ..request.clone() };
            let mut reply = from_directory(&root, request);
            let at = usize::from(at) * reply.body.len() / 256;
            match fault {
                0..40 => Reply { cut: Some(at), ..reply },
                40..55 => from_directory(&root, &whole),
                55..65 => Reply::status(503),
                65..75 if at < reply.body.len() => {
                    reply.body[at] ^= 0x10;
                    reply
                }
                75..80 => {
                    reply.body.push(0);
                    reply
                }
                80..85 => Reply::status(404),
                _ => reply,
            }
        })
        .await;
        let staging = format!("s{seed}");
        let (mut tries, mut published) = (0, false);
        while !published {
            tries += 1;
            assert!(tries < 300, "seed {seed}");
            published = world.stage(&server.url(""), &staging).await.is_ok();
            let bundles = fs::read_dir(world.path(&staging).join("bundles")).unwrap().count();
            assert_eq!(bundles, usize::from(published), "seed {seed}");
        }
        let wanted = Wanted::default();
        let found = find(&world.path(&staging), &world.keys, &wanted).await.unwrap().unwrap();
        assert!(vouched(&found.directory) == expected, "seed {seed}");
    }
}

#[tokio::test]
async fn a_wrong_byte_names_its_file_and_leaves_nothing_of_it() {
    let world = World::new();
    let (directory, built) = world.build("b");
    for blob in built.manifest.blobs() {
        let root = directory.clone();
        let bad = format!("/blobs/sha256/{}", blob.sha256);
        let server = Server::new(move |request| {
            let mut reply = from_directory(&root, request);
            if request.path == bad {
                reply.body[0] ^= 1;
            }
            reply
        })
        .await;
        let staging = format!("s-{}", blob.sha256);
        let error = world.stage(&server.url(""), &staging).await.unwrap_err();
        let Error::Content { file, expected, found } = &error else { panic!("{error}") };
        assert_eq!((file, expected), (&built.manifest.name_of(&blob.sha256), &blob.sha256));
        assert_ne!(expected, found);
        assert!(!error.is_retriable());
        let left = leftovers(&world, &staging);
        assert!(
            !left.iter().any(|name| name.starts_with("partial") || name.starts_with("bundles")),
            "{left:?}"
        );
        assert!(!left.iter().any(|name| name.contains(blob.sha256.as_str())), "{left:?}");
    }
}

#[tokio::test]
async fn a_wrong_partial_download_is_fetched_again() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let server = Server::directory(directory).await;
    let partial = world.path("s/partial");
    fs::create_dir_all(&partial).unwrap();
    for path in ["s", "s/partial"] {
        fs::set_permissions(world.path(path), fs::Permissions::from_mode(0o700)).unwrap();
    }
    for (number, blob) in built.manifest.blobs().into_iter().enumerate() {
        let length = match number % 3 {
            0 => 10,
            1 => blob.size,
            _ => blob.size + 10,
        };
        let rubbish = vec![0xee; usize::try_from(length).unwrap()];
        fs::write(partial.join(blob.sha256.as_str()), rubbish).unwrap();
    }
    world.stage(&server.url(""), "s").await.unwrap();
    assert_eq!(fs::read_dir(partial).unwrap().count(), 0);
}

#[tokio::test]
async fn each_protocol_violation_of_a_server_has_its_own_error() {
    type Change = fn(Reply) -> Reply;
    let world = World::new();
    let (directory, _) = world.build("b");
    let cases: [(&str, bool, Change); 8] = [
        ("BundleCorrupt", false, |mut reply| {
            reply.body.push(0);
            reply.endless = true;
            reply
        }),
        ("BundleCorrupt", false, |reply| Reply { body: vec![0; 10], ..reply }),
        ("BundleServerAnswer", false, |reply| reply.with("Content-Encoding", "gzip")),
        ("BundleServerAnswer", false, |mut reply| {
            reply.headers.clear();
            reply.with("Content-Range", "bytes 5-9/10")
        }),
        ("BundleServerAnswer", false, |_| Reply::status(302).with("Location", "ftp://x/y")),
        ("BundleRefused", true, |_| Reply::status(503)),
        ("BundleRefused", false, |_| Reply::status(403)),
        ("BundleDownloadTorn", true, |reply| Reply { cut: Some(0), ..reply }),
    ];
    for (reason, retriable, change) in cases {
        let root = directory.clone();
        let server = Server::new(move |request| {
            let reply = from_directory(&root, request);
            if request.path.contains("blobs") { change(reply) } else { reply }
        })
        .await;
        let error = world.stage(&server.url(""), "s").await.unwrap_err();
        assert_eq!((error.reason(), error.is_retriable()), (reason, retriable), "{error}");
        let left = leftovers(&world, "s");
        assert!(!left.iter().any(|name| name.starts_with("bundles")), "{left:?}");
    }
}

#[tokio::test]
async fn a_server_without_ranges_is_supported() {
    let world = World::new();
    let (_, built) = world.build("b");
    let root = world.directory.path().to_owned();
    let tries = Arc::new(AtomicUsize::new(0));
    let count = tries.clone();
    let server = Server::new(move |request| {
        let reply = from_directory(&root, &ReceivedRequest { range: None, ..request.clone() });
        let first = request.path.contains("blobs") && count.fetch_add(1, Ordering::SeqCst) == 0;
        Reply { cut: first.then_some(1000), ..reply }
    })
    .await;
    assert!(world.stage(&server.url("b"), "s").await.unwrap_err().is_retriable());
    let staged = world.stage(&server.url("b"), "s").await.unwrap();
    assert_eq!(staged.manifest_sha256, built.manifest_sha256);
}

#[tokio::test]
async fn redirects_are_limited_and_a_silent_server_times_out() {
    let world = World::new();
    let (directory, _) = world.build("b");
    let storage = Server::directory(directory.clone()).await;
    let elsewhere = storage.url("");
    let front = Server::new(move |request| {
        let path = request.path.trim_start_matches('/');
        Reply::status(307).with("Location", format!("{elsewhere}{path}"))
    })
    .await;
    world.stage(&front.url(""), "s").await.unwrap();
    let endless = Server::new(|_| Reply::status(307).with("Location", "/again")).await;
    let error = world.stage(&endless.url(""), "t").await.unwrap_err();
    assert!(error.to_string().contains("more than 5 redirects"), "{error}");
    let silent = Server::new(move |request| {
        let reply = from_directory(&directory, request);
        let stall = request.path.contains("blobs");
        let end = if stall { 10 } else { reply.body.len() };
        Reply { cut: Some(end), stall, ..reply }
    })
    .await;
    let error = world.stage(&silent.url(""), "u").await.unwrap_err();
    assert!(matches!(error, Error::Torn { found: 10, .. }), "{error}");
    let unreachable = "http://127.0.0.1:1/b";
    let error = world.stage(unreachable, "v").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }) && error.is_retriable(), "{error}");
}

#[tokio::test]
async fn a_cancelled_stage_resumes_the_next_time() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let server = Server::directory(directory).await;
    let slow = Limits { bytes_per_second: std::num::NonZeroU64::new(100_000), ..limits() };
    let url = server.url("");
    let wanted = Wanted::default();
    let first = world.stage_wanted(&url, "s", &wanted, &slow);
    let first = tokio::time::timeout(Duration::from_millis(400), first).await;
    assert!(first.is_err(), "130 kB at 100 kB/s take longer");
    // A write that was in progress may still finish.
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.forget();
    world.stage(&url, "s").await.unwrap();
    let ranges = server.requests().into_iter().filter_map(|request| request.range);
    let fetched: usize = ranges.map(|(from, to)| to + 1 - from).sum();
    assert!(fetched + 10_000 < usize::try_from(built.manifest.total_size()).unwrap(), "{fetched}");
}

#[tokio::test]
async fn a_single_file_resumes_and_is_always_verified() {
    let world = World::new();
    let bytes = noise(3, 90_000);
    let (served, cut) = (bytes.clone(), AtomicBool::new(true));
    let server = Server::new(move |request| {
        let first = cut.swap(false, Ordering::Relaxed);
        Reply { cut: first.then_some(30_000), ..Reply::ranged(request, &served) }
    })
    .await;
    let (url, to) = (server.url("node.tar.gz?x=1"), world.path("d/node.tar.gz"));
    let sum = Digest::of(&bytes);
    let error = fetch::file(&url, &sum, &to, &limits()).await.unwrap_err();
    assert!(error.is_retriable(), "{error}");
    assert!(!to.exists());
    fetch::file(&url, &sum, &to, &limits()).await.unwrap();
    assert_eq!(fs::read(&to).unwrap(), bytes);
    assert_eq!(fs::read_dir(world.path("d")).unwrap().count(), 1);
    let other = Digest::of(b"another");
    let error = fetch::file(&url, &other, &to, &limits()).await.unwrap_err();
    assert!(matches!(error, Error::Content { .. }), "{error}");
    let small = Limits { max_bytes: 1000, ..limits() };
    let large = fetch::file(&url, &sum, &world.path("d/x"), &small).await;
    assert_eq!(large.unwrap_err().reason(), "BundleTooLarge");
    for bad in ["ftp://h/x", "http://bob:secret@h/x", "x"] {
        let error = fetch::file(bad, &sum, &to, &limits()).await.unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
