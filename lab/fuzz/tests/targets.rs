//! Each target with its corpus and random input. `cargo bolero test` runs the same tests with a
//! coverage-guided engine; the corpus of a target is in `__fuzz__/TARGET/corpus`.

use std::path::Path;

use bolero::check;
use lab_fuzz::{Edit, edited};

/// Random inputs per test without an engine.
const INPUTS: usize = 300;

type Target = fn(&[u8]);

macro_rules! targets {
    ($($target:ident),*) => {
        $(
            #[test]
            fn $target() {
                check!().with_iterations(INPUTS).for_each(lab_fuzz::$target);
            }
        )*

        /// All targets.
        const TARGETS: &[(&str, Target)] = &[$((stringify!($target), lab_fuzz::$target)),*];
    };
}

targets!(hook_bodies, kubeconfig, host_plan, journal, bundle_manifest);

/// The longest input that is edited: longer ones show how the time grows, and take most of it.
const EDITED_BYTES: usize = 16 * 1024;

/// Random bytes are rarely valid input; edits of the corpus mostly are.
#[test]
fn edits_of_the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/__fuzz__");
    let seeds: Vec<(Target, Vec<u8>)> = TARGETS
        .iter()
        .flat_map(|(name, target)| {
            let files = std::fs::read_dir(corpus.join(name).join("corpus")).expect("a corpus");
            files.map(|file| (*target, std::fs::read(file.unwrap().path()).unwrap()))
        })
        .filter(|(_, seed)| seed.len() <= EDITED_BYTES)
        .collect();
    check!().with_iterations(INPUTS).with_type::<Vec<Edit>>().for_each(|edits| {
        for (target, seed) in &seeds {
            target(&edited(seed, edits));
        }
    });
}
