//! Replays rollout logs byte for byte: upstream's from a directory, Refit's from `tests/goldens`.
//!
//! `cargo xtask goldens DIR` runs it with upstream's. `ROLLOUT_GOLDENS=DIR` names the directory of
//! upstream's (default: `../shared/data/rollout-goldens` from the project's root); it is searched
//! recursively for `*.golden`. `UPDATE_GOLDENS=1` rewrites Refit's from their titles and initial
//! states: a new scenario needs only these.
#![expect(
    clippy::print_stdout,
    reason = "this program is a test harness: its output is the result"
)]
#![allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation, reason = "small numbers")]

mod golden;
mod gorand;
mod lines;
mod set_controller;
mod simulator;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use golden::{Golden, Title};
use gorand::GoRand;

const VARIABLE: &str = "ROLLOUT_GOLDENS";
const SUFFIX: &str = ".golden";

/// The options of libtest's command line that have a meaning here.
#[derive(Default)]
struct Arguments {
    list: bool,
    ignored: bool,
    exact: bool,
    filters: Vec<String>,
    skip: Vec<String>,
}

impl Arguments {
    fn read() -> Self {
        let mut arguments = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--list" => arguments.list = true,
                "--ignored" => arguments.ignored = true,
                "--exact" => arguments.exact = true,
                "--skip" => arguments.skip.extend(words.next()),
                "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => {
                    words.next();
                }
                flag if flag.starts_with('-') => {}
                _ => arguments.filters.push(word),
            }
        }
        arguments
    }

    fn wants(&self, name: &str) -> bool {
        let matches = |filter: &String| {
            if self.exact { name == filter } else { name.contains(filter.as_str()) }
        };
        !self.ignored
            && (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skip.iter().any(matches)
    }
}

struct Test {
    name: String,
    run: Box<dyn Fn() -> Result<(), String>>,
}

/// Results of the tests of one kind.
#[derive(Default)]
struct Tally {
    run: usize,
    failed: usize,
    filtered: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::read();
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let project = crate_directory.ancestors().nth(2).unwrap_or(crate_directory);
    let own_directory = crate_directory.join("tests/goldens");
    let given = std::env::var_os(VARIABLE).map(PathBuf::from);
    let directory = match &given {
        // Cargo runs tests in the crate's directory; a relative path is meant from the project's
        // root.
        Some(directory) if project.join(directory).exists() => project.join(directory),
        Some(directory) => directory.clone(),
        None => project.join("../shared/data/rollout-goldens"),
    };
    let upstream_files = golden_files(&directory);
    let own_files = golden_files(&own_directory);
    let wants_update = std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1");
    if wants_update && let Err(error) = own_files.iter().try_for_each(|path| update(path)) {
        println!("{error}");
        return ExitCode::FAILURE;
    }

    let upstream = tests_of("upstream", &directory, &upstream_files);
    let own = tests_of("own", &own_directory, &own_files);
    let of_harness = harness_tests(&own_files);
    if arguments.list {
        for test in upstream.iter().chain(&own).chain(&of_harness) {
            if arguments.wants(&test.name) {
                println!("{}: test", test.name);
            }
        }
        return ExitCode::SUCCESS;
    }

    println!("\nrunning {} tests", upstream.len() + own.len() + of_harness.len());
    let mut failures = Vec::new();
    let upstream_tally = run(&arguments, &upstream, &mut failures);
    let own_tally = run(&arguments, &own, &mut failures);
    let harness_tally = run(&arguments, &of_harness, &mut failures);
    if !failures.is_empty() {
        println!("\nfailures:\n\n{}", failures.join("\n"));
    }

    println!();
    let mut ok = failures.is_empty();
    if given.is_none() && upstream_files.is_empty() {
        println!("not run: no data at {}", directory.display());
    } else {
        println!("{} goldens, {} failed", upstream_tally.run, upstream_tally.failed);
        if upstream_files.is_empty() {
            println!("no file named *{SUFFIX} in {}", directory.display());
            ok = false;
        }
    }
    println!("own goldens: {}, {} failed", own_tally.run, own_tally.failed);
    let tallies = [upstream_tally, own_tally, harness_tally];
    let sum = |count: fn(&Tally) -> usize| tallies.iter().map(count).sum::<usize>();
    let failed = sum(|tally| tally.failed);
    println!(
        "\ntest result: {}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out\n",
        if ok { "ok" } else { "FAILED" },
        sum(|tally| tally.run) - failed,
        sum(|tally| tally.filtered),
    );
    if ok { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

fn run(arguments: &Arguments, tests: &[Test], failures: &mut Vec<String>) -> Tally {
    let mut tally = Tally::default();
    for test in tests {
        if !arguments.wants(&test.name) {
            tally.filtered += 1;
            continue;
        }
        tally.run += 1;
        let result = (test.run)();
        println!("test {} ... {}", test.name, if result.is_ok() { "ok" } else { "FAILED" });
        if let Err(error) = result {
            tally.failed += 1;
            failures.push(format!("---- {} ----\n{error}\n", test.name));
        }
    }
    tally
}

/// Finds all golden files below a directory, in a stable order.
fn golden_files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() {
            files.extend(golden_files(&path));
        } else if path.to_string_lossy().ends_with(SUFFIX) {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn tests_of(group: &str, directory: &Path, files: &[PathBuf]) -> Vec<Test> {
    let test = |path: &PathBuf| {
        let relative = path.strip_prefix(directory).unwrap_or(path).to_string_lossy().into_owned();
        let path = path.clone();
        Test {
            name: format!("{group}::{relative}"),
            run: Box::new(move || {
                let text = fs::read_to_string(&path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                check_name(&path, &text)?;
                check(&text)
            }),
        }
    };
    files.iter().map(test).collect()
}

fn check(text: &str) -> Result<(), String> {
    Golden::parse(text)?.check(text)
}

/// Checks that a file named after a title has that title.
fn check_name(path: &Path, text: &str) -> Result<(), String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(name) = name.strip_suffix(".test.log.golden") else {
        return Ok(());
    };
    let title = text.lines().next().unwrap_or_default().trim_start_matches("## ");
    match (Title::parse(name), Title::parse(title)) {
        (Ok(of_name), Ok(of_title)) if of_name != of_title => {
            Err(format!("the file is named {name:?}, its title is {title:?}"))
        }
        _ => Ok(()),
    }
}

fn update(path: &Path) -> Result<(), String> {
    let show = |error: String| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| show(error.to_string()))?;
    let log = Golden::parse(&text).and_then(|golden| golden.render()).map_err(show)?;
    fs::write(path, log).map_err(|error| show(error.to_string()))
}

/// Tests of this harness itself.
fn harness_tests(own_files: &[PathBuf]) -> Vec<Test> {
    let texts: Vec<(String, String)> = own_files
        .iter()
        .filter_map(|path| Some((path.display().to_string(), fs::read_to_string(path).ok()?)))
        .collect();
    let of_texts = |name: &str, check: fn(&str) -> Result<(), String>| {
        let texts = texts.clone();
        Test {
            name: format!("harness::{name}"),
            run: Box::new(move || {
                texts.iter().try_for_each(|(path, text)| {
                    check(text).map_err(|error| format!("{path}: {error}"))
                })
            }),
        }
    };
    vec![
        Test {
            name: "harness::random_numbers_are_those_of_go".to_owned(),
            run: Box::new(random_numbers_are_those_of_go),
        },
        of_texts("a_changed_digit_is_found", a_changed_digit_is_found),
        of_texts("a_changed_or_missing_line_is_found", a_changed_or_missing_line_is_found),
        of_texts("a_cut_log_is_found", a_cut_log_is_found),
        of_texts(
            "an_order_that_no_seed_gives_is_replayed",
            an_order_that_no_seed_gives_is_replayed,
        ),
    ]
}

fn random_numbers_are_those_of_go() -> Result<(), String> {
    let mut random = GoRand::new(1);
    let numbers: Vec<usize> = (0..10).map(|_| random.below(100)).collect();
    if numbers == [81, 87, 47, 59, 81, 18, 25, 40, 56, 0] {
        Ok(())
    } else {
        Err(format!("seed 1 gives {numbers:?}"))
    }
}

/// Changes digits one at a time, always at the same places.
fn a_changed_digit_is_found(text: &str) -> Result<(), String> {
    let digits = text.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_digit());
    for (nth, (at, digit)) in digits.enumerate() {
        if nth % 11 != 0 && at > 400 {
            continue;
        }
        let mut changed = text.as_bytes().to_vec();
        changed[at] = b'0' + (digit - b'0' + 1 + (nth % 9) as u8) % 10;
        must_fail(&changed, text, at)?;
    }
    Ok(())
}

/// Removes, repeats and alters whole lines.
fn a_changed_or_missing_line_is_found(text: &str) -> Result<(), String> {
    let lines: Vec<&str> = text.lines().collect();
    for at in (0..lines.len()).step_by(7) {
        let join = |lines: &[&str]| (lines.join("\n") + "\n").into_bytes();
        let mut dropped = lines.clone();
        dropped.remove(at);
        must_fail(&join(&dropped), text, at)?;
        let mut repeated = lines.clone();
        repeated.insert(at, lines[at]);
        must_fail(&join(&repeated), text, at)?;
        let altered_line = format!("{}x", lines[at]);
        let mut altered = lines.clone();
        altered[at] = &altered_line;
        must_fail(&join(&altered), text, at)?;
    }
    Ok(())
}

/// Cuts the log at line ends; the rest must not pass for a complete log.
fn a_cut_log_is_found(text: &str) -> Result<(), String> {
    let ends = text.match_indices('\n').map(|(at, _)| at + 1);
    ends.filter(|at| *at < text.len())
        .try_for_each(|at| must_fail(&text.as_bytes()[..at], text, at))
}

/// A random log under another seed's name: the order is taken from the log, everything else is
/// computed.
fn an_order_that_no_seed_gives_is_replayed(text: &str) -> Result<(), String> {
    let Some(at) = text.find("random(") else {
        return Ok(());
    };
    let seed: String = text[at + 7..].chars().take_while(char::is_ascii_digit).collect();
    let renamed = text.replace(&format!("random({seed})"), &format!("random(1{seed})"));
    check(&renamed)?;
    let (line, _) = text.match_indices('\n').nth(20).ok_or("the log is short")?;
    let digit = renamed[line..].find(" available").ok_or("no counts")? + line - 1;
    let mut changed = renamed.clone().into_bytes();
    changed[digit] = if changed[digit] == b'9' { b'8' } else { changed[digit] + 1 };
    must_fail(&changed, &renamed, digit)
}

fn must_fail(changed: &[u8], text: &str, at: usize) -> Result<(), String> {
    let changed = String::from_utf8_lossy(changed);
    if changed != text && check(&changed).is_ok() {
        return Err(format!("passes with a change at {at}:\n{changed}"));
    }
    Ok(())
}
