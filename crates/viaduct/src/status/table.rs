//! Table that fits the width of a terminal: columns are dropped, and the last one is cut.

use super::colours::Colours;

/// Number of blanks between two cells.
const GAP: usize = 2;
/// Minimum width of the last column. Other columns are dropped to make room for it.
const MIN_LAST: usize = 12;
/// Text of a cell without a value. A column that has only such or empty cells is not shown, unless
/// its rank is 0.
pub const NONE: &str = "-";

/// Column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Name in the first line.
    pub name: &'static str,
    /// True to align its cells to the right.
    pub right: bool,
    /// Columns of higher ranks are dropped first; columns of rank 0 are never dropped.
    pub rank: u8,
}

/// Cell of a table.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    colour: Option<u8>,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        // Names of services come from file names, which may contain any character.
        let plain = |c: char| if c.is_control() { '?' } else { c };
        Cell { text: text.into().chars().map(plain).collect(), colour: None }
    }
}

impl Cell {
    /// Sets the colour, an SGR code.
    pub fn colour(self, code: u8) -> Cell {
        Cell { colour: Some(code), ..self }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// Formats `rows` in lines of at most `width` characters. The first line has the names of
/// the columns.
pub fn lines(
    columns: &[Column],
    rows: &[Vec<Cell>],
    width: usize,
    colours: Colours,
) -> Vec<String> {
    let shown = shown(columns, rows, width);
    let last = shown.last().map(|(at, _)| *at);
    let line = |cell: &dyn Fn(usize) -> Cell| {
        let mut left = width;
        let cells = shown.iter().map(|&(at, wide)| {
            let wide = if Some(at) == last { left } else { wide };
            left = left.saturating_sub(wide + GAP);
            pad(&cell(at), wide, columns[at].right, Some(at) == last, colours)
        });
        cells.collect::<Vec<_>>().join(&" ".repeat(GAP))
    };
    let names = line(&|at| columns[at].name.into());
    let rows = rows.iter().map(|row| line(&|at| row[at].clone()));
    std::iter::once(colours.bold(names)).chain(rows).collect()
}

/// Columns that are shown, and their widths.
fn shown(columns: &[Column], rows: &[Vec<Cell>], width: usize) -> Vec<(usize, usize)> {
    let is_value = |cell: &Cell| !cell.text.is_empty() && cell.text != NONE;
    let has_value = |at: usize| rows.is_empty() || rows.iter().any(|row| is_value(&row[at]));
    let wide = |at: usize| {
        let cells = rows.iter().map(|row| row[at].width());
        cells.chain([columns[at].name.chars().count()]).max().unwrap_or(0)
    };
    let mut shown: Vec<_> = (0..columns.len())
        .filter(|&at| columns[at].rank == 0 || has_value(at))
        .map(|at| (at, wide(at)))
        .collect();
    loop {
        let Some((_, others)) = shown.split_last() else { return shown };
        let used: usize = others.iter().map(|(_, wide)| wide + GAP).sum();
        let rank = |&(at, _): &(usize, usize)| columns[at].rank;
        let most = shown.iter().map(rank).max().unwrap_or(0);
        if used + MIN_LAST <= width || most == 0 {
            return shown;
        }
        // The last of the columns of this rank is dropped.
        let Some(dropped) = shown.iter().rposition(|column| rank(column) == most) else {
            return shown;
        };
        shown.remove(dropped);
    }
}

/// Text of a cell in `wide` characters. The last cell of a line is not padded.
fn pad(cell: &Cell, wide: usize, right: bool, last: bool, colours: Colours) -> String {
    let text: String = match cell.width() > wide {
        true => cell.text.chars().take(wide.saturating_sub(1)).chain(['…']).collect(),
        false => cell.text.clone(),
    };
    let blank = if last { 0 } else { wide.saturating_sub(cell.width()) };
    let blank = " ".repeat(blank);
    let text = cell.colour.map_or(text.clone(), |code| colours.paint(code, &text));
    if right { blank + &text } else { text + &blank }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column { name: "name", right: false, rank: 0 },
        Column { name: "peers", right: true, rank: 2 },
        Column { name: "loss", right: true, rank: 1 },
        Column { name: "state", right: false, rank: 0 },
    ];

    fn table(width: usize) -> String {
        let row = |cells: [&str; 4]| cells.map(Cell::from).to_vec();
        let rows =
            [row(["rome", "2/2", "-", "up"]), row(["proxy-7000", "-", "-", "down: no answer"])];
        lines(&COLUMNS, &rows, width, Colours(false)).join("\n")
    }

    #[test]
    fn columns_without_values_are_left_out_and_the_rest_fits() {
        assert_eq!(
            table(80),
            "name        peers  state\nrome          2/2  up\nproxy-7000      -  down: no answer"
        );
        assert_eq!(
            table(31),
            "name        peers  state\nrome          2/2  up\nproxy-7000      -  down: no an…"
        );
        assert_eq!(table(26), "name        state\nrome        up\nproxy-7000  down: no answ…");
    }

    #[test]
    fn control_characters_are_not_shown() {
        assert_eq!(Cell::from("a\x1b[31m").text, "a?[31m");
        let painted = Cell::from("up").colour(32);
        assert_eq!(pad(&painted, 4, true, false, Colours(true)), "  \x1b[32mup\x1b[0m");
    }
}
