//! What happens to a test midway: a watch that is interrupted.

use std::{fs, time::Duration};

use lab_apiserver::Down;

use super::{PROVIDER, Provider, stage, suite, write};
use crate::stage::Stage;

/// Options for a provider that keeps the contract and is quick.
const QUICK: [&str; 4] = ["--timeout", "10s", "--settle", "100ms"];

/// A cluster in which a provider runs, and the arguments of a test of it.
fn with_provider() -> (Stage, String) {
    let stage = stage(None);
    stage.spawn(Provider::new(stage.client(), None, stage.path("restarted")).run());
    let file = write(&stage, PROVIDER);
    (stage, file)
}

/// The command of `--restart` goes on only once the suite has noticed what happens meanwhile.
#[test]
fn the_watch_is_followed_while_the_provider_is_restarted() {
    let (stage, file) = with_provider();
    let (started, go) = (stage.path("started"), stage.path("go"));
    let (started, go) = (started.display().to_string(), go.display().to_string());
    let restart = format!("touch {started}; while [ ! -e {go} ]; do sleep 0.05; done");
    let more = [&QUICK[..], &["--restart", &restart]].concat();
    let mut test = stage.start(&suite(&file, &more));
    test.until("run update: restarting the provider");
    while !stage.path("started").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    stage.server().faults().set_down(Some(Down::Unavailable));
    test.until("run update: the watch is interrupted");
    stage.server().faults().set_down(None);
    fs::write(&go, "").unwrap();
    let ended = test.end();
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}
