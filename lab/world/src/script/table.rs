//! Aligned tables.

/// Formats a table with two spaces between columns; nothing is truncated.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return "none\n".to_owned();
    }
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(header.get(column).map_or(0, |title| title.chars().count()))
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            let cell = if cell.is_empty() { "-" } else { cell };
            line.push_str(cell);
            let pad = (width + 2).saturating_sub(cell.chars().count());
            line.extend(std::iter::repeat_n(' ', pad));
        }
        format!("{}\n", line.trim_end())
    };
    let titles: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
    std::iter::once(line(&titles)).chain(rows.iter().map(|row| line(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows =
            [vec!["a".to_owned(), String::new()], vec!["longer".to_owned(), "x y".to_owned()]];
        assert_eq!(table(&["N", "WHAT"], &rows), "N       WHAT\na       -\nlonger  x y\n");
        assert_eq!(table(&["N"], &[]), "none\n");
    }
}
