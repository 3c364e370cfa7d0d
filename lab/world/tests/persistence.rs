//! A world that outlives its process: every prefix of its log is a world that goes on.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use common::{NEW, assert_same_machines, example, in_world, up, upgraded, who};
use lab_world::{
    persist::{Folder, PersistError, PersistenceRun},
    world::{World, WorldOptions},
};

/// The undisturbed run, once for all tests.
fn run() -> &'static PersistenceRun {
    static RUN: OnceLock<PersistenceRun> = OnceLock::new();
    RUN.get_or_init(|| PersistenceRun::record(&example()).unwrap())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn file(folder: &Path) -> PathBuf {
    folder.join("world.log")
}

/// Options of a world that is kept in a folder.
fn kept_in(folder: &Folder) -> WorldOptions {
    WorldOptions { log: Some(folder.log()), ..WorldOptions::new(Vec::new()) }
}

#[test]
fn persistence_survives_a_kill_at_each_write_of_the_demo() {
    let run = run();
    assert!(run.records() > 1000, "{} records", run.records());
    // `cargo xtask sweep persistence` goes on from all of them.
    let report = run.sweep(&run.prefixes(Some(4)), 2, |_, _, _| {});
    let failures: Vec<String> = report
        .failures
        .iter()
        .map(|(prefix, problems)| format!("{prefix}: {}", problems.join("; ")))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn each_record_gives_two_prefixes_but_the_last() {
    let run = run();
    assert_eq!(run.prefixes(None).len(), 2 * run.records() - 1);
    let some = run.prefixes(Some(4));
    assert!(some.iter().any(|prefix| prefix.torn));
    assert!(some.iter().any(|prefix| !prefix.torn));
}

#[test]
fn a_world_goes_on_in_its_folder_after_a_kill_in_the_middle() {
    let place = folder();
    let mut before = Vec::new();
    in_world(async {
        let world = up().await;
        before = who(&world).await;
        let kept = Folder::open(place.path()).unwrap();
        let world = World::restore(&world.snapshot(), &kept_in(&kept)).unwrap();
        world.upgrade(NEW).await.unwrap();
        world.pass(Duration::from_mins(4)).await;
        assert!(!world.is_updated(NEW));
        // The kill: nothing is said to anybody, the world is just gone.
    });
    in_world(async {
        let kept = Folder::open(place.path()).unwrap();
        let snapshot = kept.load().unwrap().unwrap();
        let world = World::restore(&snapshot, &kept_in(&kept)).unwrap();
        upgraded(&world, NEW).await;
        assert_same_machines(&before, &who(&world).await);
    });
}

#[test]
fn a_folder_is_one_process_s_and_one_user_s() {
    let place = folder();
    let path = place.path().join("new/deep");
    let kept = Folder::open(&path).unwrap();
    let refused = Folder::open(&path).unwrap_err();
    assert!(matches!(refused, PersistError::InUse(_)), "{refused}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    drop(kept);
    assert!(Folder::open(&path).unwrap().load().unwrap().is_none());
}

/// A folder with a world and some changes.
fn with_changes() -> tempfile::TempDir {
    let place = folder();
    in_world(async {
        let world = World::new(WorldOptions::new(example())).await.unwrap();
        let kept = Folder::open(place.path()).unwrap();
        let world = World::restore(&world.snapshot(), &kept_in(&kept)).unwrap();
        world.pass(Duration::from_secs(30)).await;
    });
    place
}

fn loaded(place: &Path) -> Result<(), PersistError> {
    Folder::open(place)?.load().map(|world| assert!(world.is_some()))
}

#[test]
fn a_torn_last_record_is_left_out_and_a_damaged_one_in_the_middle_is_named() {
    let place = with_changes();
    let path = file(place.path());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let whole = fs::read(&path).unwrap();
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
    let (first, last) = (ends[0], ends[ends.len() - 2]);

    fs::write(&path, &whole[..last + 20]).unwrap();
    loaded(place.path()).unwrap();

    let mut zeros = whole[..=last].to_vec();
    zeros.extend([0; 4096]);
    fs::write(&path, zeros).unwrap();
    loaded(place.path()).unwrap();

    let mut damaged = whole.clone();
    damaged[first + 40] ^= 1;
    fs::write(&path, damaged).unwrap();
    let error = loaded(place.path()).unwrap_err().to_string();
    let offset = format!("world.log is damaged at byte {}", first + 1);
    assert!(error.contains(&offset), "{error}");
    assert!(error.contains(&format!("truncate -s {}", first + 1)), "{error}");

    fs::write(&path, "something else\n").unwrap();
    let error = loaded(place.path()).unwrap_err().to_string();
    assert!(error.contains("is no world of this version"), "{error}");
}
