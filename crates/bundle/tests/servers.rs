//! Web servers that cut, err and lie.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here fails the test")]

mod support;

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

use refit_bundle::{
    Digest, Error,
    fetch::{self, Limits, Wanted, find},
};
use support::{Asked, Reply, Server, World, from_directory, leftovers, limits, noise, text, tree};

#[tokio::test]
async fn a_download_that_is_cut_anywhere_goes_on_where_it_stopped() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let expected = tree(&world.stage(&text(&directory), "whole").await.unwrap().directory);
    for cut in [1_500, 4_096, 16_383, 16_384, 65_535, 65_536, 65_537] {
        let root = directory.clone();
        let server = Server::new(move |asked| {
            let reply = from_directory(&root, asked);
            let cut = asked.path.contains("blobs").then_some(cut);
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
        let bytes = |asked: &Asked| asked.range.map_or(0, |(from, to)| (to + 1 - from).min(cut));
        let fetched: usize = server.asked().iter().map(bytes).sum();
        let total = usize::try_from(built.manifest.total_size()).unwrap();
        assert_eq!(fetched, total, "no byte is fetched twice, cut after {cut}");
    }
}

#[tokio::test]
async fn a_head_that_is_cut_is_torn_and_nothing_stays() {
    let world = World::new();
    let (directory, _) = world.build("b");
    for cut in [0, 1, 100, 511] {
        let root = directory.clone();
        let reply = move |asked: &Asked| Reply { cut: Some(cut), ..from_directory(&root, asked) };
        let server = Server::new(reply).await;
        let error = world.stage(&server.url(""), "s").await.unwrap_err();
        assert!(error.is_retriable(), "{cut}: {error}");
        assert_eq!(leftovers(&world, "s"), [""; 0]);
    }
}

/// Whatever a server does, in whatever order: what is staged is what was signed, or nothing is.
#[tokio::test]
async fn a_server_that_errs_at_random_never_gets_a_wrong_byte_through() {
    let world = World::new();
    let (directory, _) = world.build("b");
    // All but the line of a signature that nobody vouches for.
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
        let server = Server::new(move |asked| {
            let turn = count.fetch_add(1, Ordering::SeqCst) as u64;
            let [fault, at] = <[u8; 2]>::try_from(noise(seed * 1_000 + turn, 2)).unwrap();
            let whole = Asked { range: None, ..asked.clone() };
            let mut reply = from_directory(&root, asked);
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
        let server = Server::new(move |asked| {
            let mut reply = from_directory(&root, asked);
            if asked.path == bad {
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
async fn a_bad_beginning_that_an_earlier_try_left_is_fetched_anew() {
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
async fn servers_that_do_not_keep_to_the_rules_are_told_apart() {
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
        let server = Server::new(move |asked| {
            let reply = from_directory(&root, asked);
            if asked.path.contains("blobs") { change(reply) } else { reply }
        })
        .await;
        let error = world.stage(&server.url(""), "s").await.unwrap_err();
        assert_eq!((error.reason(), error.is_retriable()), (reason, retriable), "{error}");
        let left = leftovers(&world, "s");
        assert!(!left.iter().any(|name| name.starts_with("bundles")), "{left:?}");
    }
}

#[tokio::test]
async fn a_server_without_ranges_is_good_enough() {
    let world = World::new();
    let (_, built) = world.build("b");
    let root = world.directory.path().to_owned();
    let tries = Arc::new(AtomicUsize::new(0));
    let count = tries.clone();
    let server = Server::new(move |asked| {
        let reply = from_directory(&root, &Asked { range: None, ..asked.clone() });
        let first = asked.path.contains("blobs") && count.fetch_add(1, Ordering::SeqCst) == 0;
        Reply { cut: first.then_some(1000), ..reply }
    })
    .await;
    assert!(world.stage(&server.url("b"), "s").await.unwrap_err().is_retriable());
    let staged = world.stage(&server.url("b"), "s").await.unwrap();
    assert_eq!(staged.manifest_sha256, built.manifest_sha256);
}

#[tokio::test]
async fn redirects_are_followed_so_far_and_silence_is_not_waited_for() {
    let world = World::new();
    let (directory, _) = world.build("b");
    let storage = Server::directory(directory.clone()).await;
    let elsewhere = storage.url("");
    let front = Server::new(move |asked| {
        let path = asked.path.trim_start_matches('/');
        Reply::status(307).with("Location", format!("{elsewhere}{path}"))
    })
    .await;
    world.stage(&front.url(""), "s").await.unwrap();
    let endless = Server::new(|_| Reply::status(307).with("Location", "/again")).await;
    let error = world.stage(&endless.url(""), "t").await.unwrap_err();
    assert!(error.to_string().contains("redirects more than 5 times"), "{error}");
    let silent = Server::new(move |asked| {
        let reply = from_directory(&directory, asked);
        let stall = asked.path.contains("blobs");
        let end = if stall { 10 } else { reply.body.len() };
        Reply { cut: Some(end), stall, ..reply }
    })
    .await;
    let error = world.stage(&silent.url(""), "u").await.unwrap_err();
    assert!(matches!(error, Error::Torn { found: 10, .. }), "{error}");
    let nobody = "http://127.0.0.1:1/b";
    let error = world.stage(nobody, "v").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }) && error.is_retriable(), "{error}");
}

#[tokio::test]
async fn a_stage_that_is_dropped_halfway_goes_on_the_next_time() {
    let world = World::new();
    let (directory, built) = world.build("b");
    let server = Server::directory(directory).await;
    let slow = Limits { bytes_per_second: std::num::NonZeroU64::new(100_000), ..limits() };
    let url = server.url("");
    let wanted = Wanted::default();
    let first = world.stage_wanted(&url, "s", &wanted, &slow);
    let first = tokio::time::timeout(Duration::from_millis(400), first).await;
    assert!(first.is_err(), "130 kB at 100 kB/s take longer");
    // What it had in hand may still be written.
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.forget();
    world.stage(&url, "s").await.unwrap();
    let ranges = server.asked().into_iter().filter_map(|asked| asked.range);
    let fetched: usize = ranges.map(|(from, to)| to + 1 - from).sum();
    assert!(fetched + 10_000 < usize::try_from(built.manifest.total_size()).unwrap(), "{fetched}");
}

#[tokio::test]
async fn a_single_file_goes_on_where_it_stopped_and_is_never_another() {
    let world = World::new();
    let bytes = noise(3, 90_000);
    let (served, cut) = (bytes.clone(), AtomicBool::new(true));
    let server = Server::new(move |asked| {
        let first = cut.swap(false, Ordering::Relaxed);
        Reply { cut: first.then_some(30_000), ..Reply::ranged(asked, &served) }
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
