//! Plots as SVG text, whose colours are set by the page's style sheet.
//!
//! The drawing library supports fixed colours only. Each role has one fixed colour that the
//! style sheet replaces with a variable, so that the same SVG serves light and dark themes.

use anyhow::anyhow;
use plotters::prelude::*;

use super::axis::Scale;
use crate::experiment::{Kind, Series};

/// Number of colours; further series reuse them from the first.
pub(super) const COLOURS: usize = 9;
/// Colours of roles; see the style sheet in `page.css`.
const INK: RGBColor = RGBColor(2, 2, 2);
const GRID: RGBColor = RGBColor(3, 3, 3);
const SIZE: (u32, u32) = (820, 400);

fn colour(index: usize) -> RGBColor {
    RGBColor(1, 1, (index % COLOURS) as u8)
}

/// Renders `series`, which share their axes; a plot without points is an empty string.
pub(super) fn render(series: &[&Series]) -> anyhow::Result<String> {
    let Some((x, y)) = Scale::both(series) else {
        return Ok(String::new());
    };
    let mut svg = String::new();
    draw(series, &x, &y, &mut svg).map_err(|e| anyhow!("cannot draw {}: {e}", series[0].plot))?;
    Ok(svg)
}

fn draw(
    series: &[&Series],
    x: &Scale,
    y: &Scale,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .margin_right(24)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(x.clone(), y.clone())?;
    let text = ("sans-serif", 15).into_font().color(&INK);
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_desc(series[0].x.to_string())
        .y_desc(series[0].y.to_string())
        .draw()?;
    let bars = BarLayout::of(series, x);
    for (index, series) in series.iter().enumerate() {
        let colour = colour(index);
        let points: Vec<Placed> = series.points.iter().filter_map(|p| place(p, x, y)).collect();
        match series.kind {
            Kind::Histogram => {
                let (left, width) = bars.of_series(index);
                chart.draw_series(points.iter().map(|p| {
                    let corners = [(p.x + left, y.least()), (p.x + left + width, p.y)];
                    Rectangle::new(corners, colour.filled())
                }))?;
                let middle = left + width / 2.0;
                chart.draw_series(points.iter().filter_map(|p| whisker(p, middle, INK)))?;
            }
            Kind::Line => {
                let mut line: Vec<_> = points.iter().map(|p| (p.x, p.y)).collect();
                line.sort_by(|a, b| a.0.total_cmp(&b.0));
                chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
                chart.draw_series(points.iter().filter_map(|p| whisker(p, 0.0, colour)))?;
                // Adjacent dots would hide the line.
                if points.len() <= 60 {
                    chart.draw_series(points.iter().map(|p| dot(p, 4, colour)))?;
                }
            }
            Kind::Scatter => {
                chart.draw_series(points.iter().map(|p| dot(p, 2, colour)))?;
            }
        }
    }
    root.present()?;
    drop(chart);
    Ok(())
}

/// Point in the chart's coordinates.
struct Placed {
    x: f64,
    y: f64,
    error: Option<(f64, f64)>,
}

fn place(point: &crate::experiment::Point, x: &Scale, y: &Scale) -> Option<Placed> {
    let error = point.error.filter(|error| *error > 0.0);
    let ends = |e: f64| (y.place(point.y - e).unwrap_or(y.least()), y.place(point.y + e));
    let error = error.map(ends).and_then(|(low, high)| Some((low, high?.min(y.most()))));
    Some(Placed { x: x.place(point.x)?, y: y.place(point.y)?, error })
}

fn dot(p: &Placed, size: i32, colour: RGBColor) -> Circle<(f64, f64), i32> {
    Circle::new((p.x, p.y), size, colour.filled())
}

fn whisker(p: &Placed, shift: f64, colour: RGBColor) -> Option<PathElement<(f64, f64)>> {
    let (low, high) = p.error?;
    let x = p.x + shift;
    Some(PathElement::new([(x, low), (x, high)], colour.stroke_width(2)))
}

struct BarLayout {
    width: f64,
    series: usize,
}

impl BarLayout {
    fn of(series: &[&Series], x: &Scale) -> BarLayout {
        let points = series.iter().flat_map(|series| &series.points);
        let mut xs: Vec<f64> = points.filter_map(|point| x.place(point.x)).collect();
        xs.sort_by(f64::total_cmp);
        let gaps = xs.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0.0);
        let gap = gaps.fold(f64::INFINITY, f64::min);
        let gap = if gap.is_finite() { gap } else { 1.0 };
        BarLayout { width: gap * 0.8, series: series.len() }
    }

    /// Returns the distance from x to the left edge, and the width, of the bars of series `index`.
    fn of_series(&self, index: usize) -> (f64, f64) {
        let width = self.width / self.series as f64;
        (-self.width / 2.0 + width * index as f64, width)
    }
}
