use refit_agent::{
    journal::{JournalError, Recovered, encode, recover},
    state::{JournalState, Record},
};

/// Reads a journal: the input as a whole, as the end of a valid journal, and as the entries of
/// records with valid checksums.
pub fn journal(input: &[u8]) {
    whole(input);
    let records = entries(input);
    let written = bytes_of(&records);
    let read = recover(&written).expect("a journal that was written can be read");
    assert_eq!((&read.records, read.valid_bytes), (&records, written.len()));
    follow(&records);
    torn(&records, &written, input);
}

fn whole(input: &[u8]) {
    if let Ok(Recovered { records, valid_bytes, .. }) = recover(input) {
        let again = recover(&input[..valid_bytes]).expect("what was kept can be read again");
        assert_eq!((again.records, again.valid_bytes), (records, valid_bytes));
    }
}

/// Whatever a crash leaves after the last synced record, the records before it survive.
fn torn(records: &[Record], written: &[u8], tail: &[u8]) {
    match recover(&[written, tail].concat()) {
        Ok(read) => assert_eq!(read.records.get(..records.len()), Some(records)),
        Err(JournalError::Corrupt { line, .. }) => assert!(line > records.len()),
        // The tail has a line with a valid checksum, as a newer agent writes it.
        Err(JournalError::Newer { .. }) => {}
        Err(JournalError::Disk { .. }) => unreachable!("no disk is read"),
    }
    let unfinished = tail.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let read = recover(&[written, unfinished].concat()).expect("a torn record is dropped");
    assert_eq!((read.records.as_slice(), read.valid_bytes), (records, written.len()));
}

fn entries(input: &[u8]) -> Vec<Record> {
    let lines = input.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

fn bytes_of(records: &[Record]) -> Vec<u8> {
    (1..).zip(records).map(|(seq, record)| encode(seq, record)).collect::<String>().into_bytes()
}

/// Reads the state that the agent acts on.
fn follow(records: &[Record]) {
    let mut state = JournalState::default();
    for record in records {
        assert!(!record.what().is_empty());
        state.apply(record);
        if let Some(progress) = state.live() {
            let _ = (progress.open(), progress.passed(), progress.past_no_return());
            let _ = progress.next_step();
        }
    }
}
