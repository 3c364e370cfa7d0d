//! The report of `refit contract test`.

use refit_predict::contract::{Finding, Verdict};
use serde_json::json;

use crate::printer::Printer;

/// Prints a line for each clause; returns whether none is broken. The error is what has ended the test early.
pub(super) fn report(
    printer: Printer,
    findings: &[Finding],
    error: Option<&anyhow::Error>,
) -> anyhow::Result<bool> {
    let is_broken = |finding: &&Finding| matches!(finding.verdict, Verdict::Broken(_));
    let kept = !findings.iter().any(|finding| is_broken(&finding));
    if printer.is_json() {
        let clauses = findings.iter().map(|finding| {
            let mut clause = json!(finding);
            clause["requirement"] = json!(finding.clause.requirement());
            clause
        });
        let mut document = json!({"kept": kept, "clauses": clauses.collect::<Vec<_>>()});
        if let Some(error) = error {
            document["error"] = json!(format!("{error:#}"));
        }
        printer.result(&serde_json::to_string_pretty(&document)?)?;
        return Ok(kept);
    }
    for Finding { clause, verdict } in findings {
        let (word, message) = match verdict {
            Verdict::Kept => (printer.good("kept      "), ""),
            Verdict::NotTested(why) => (printer.notable("not tested"), why.as_str()),
            Verdict::Broken(why) => (printer.bad("BROKEN    "), why.as_str()),
        };
        printer.result(&format!("{word}  {:<20}  {}", clause.to_string(), clause.requirement()))?;
        if !message.is_empty() {
            printer.result(&format!("            {message}"))?;
        }
    }
    let broken = findings.iter().filter(is_broken).count();
    let tested = |finding: &&Finding| !matches!(finding.verdict, Verdict::NotTested(_));
    let tested = findings.iter().filter(tested).count();
    let of = findings.len();
    printer.result(&match broken {
        0 if tested == of => printer.good(&format!("The provider keeps all {of} clauses.")),
        0 => format!("The provider keeps the {tested} clauses that were tested, of {of}."),
        _ => printer.bad(&format!("The provider breaks {broken} of {of} clauses.")),
    })?;
    Ok(kept)
}
