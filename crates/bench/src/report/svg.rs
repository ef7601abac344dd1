//! Horizontal bars as inline SVG: one bar per label, the value written at its end.

use std::fmt::Write;

/// One bar.
pub(super) struct Bar {
    pub label: String,
    pub value: f64,
    pub text: String,
    pub class: usize,
}

const LABEL_WIDTH: f64 = 170.0;
const BAR_WIDTH: f64 = 420.0;
const TEXT_WIDTH: f64 = 110.0;
const ROW: f64 = 24.0;

/// A chart. With `logarithmic`, bars show decades above the smallest value.
pub(super) fn bars(title: &str, bars: &[Bar], logarithmic: bool) -> String {
    let (width, height) = (LABEL_WIDTH + BAR_WIDTH + TEXT_WIDTH, ROW * bars.len() as f64 + 4.0);
    let mut out = format!(
        "<svg role=\"img\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\"><title>{}</title>",
        escape(title)
    );
    let largest = bars.iter().map(|b| b.value).fold(0.0, f64::max);
    let smallest = bars.iter().map(|b| b.value).filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
    for (i, bar) in bars.iter().enumerate() {
        let share = if logarithmic { decades(bar.value, smallest, largest) } else { bar.value / largest.max(f64::MIN_POSITIVE) };
        let (y, length) = (2.0 + ROW * i as f64, (share * BAR_WIDTH).max(1.0));
        let (label_x, text_x, text_y) = (LABEL_WIDTH - 8.0, LABEL_WIDTH + length + 6.0, y + 16.0);
        let _ = write!(
            out,
            "<text x=\"{label_x}\" y=\"{text_y}\" text-anchor=\"end\">{}</text>\
             <rect class=\"c{}\" x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{length:.1}\" height=\"18\" rx=\"2\"/>\
             <text x=\"{text_x:.1}\" y=\"{text_y}\">{}</text>",
            escape(&bar.label),
            bar.class % 6,
            escape(&bar.text)
        );
    }
    out.push_str("</svg>");
    out
}

fn decades(value: f64, smallest: f64, largest: f64) -> f64 {
    let (low, high) = (smallest.max(f64::MIN_POSITIVE).log10() - 0.3, largest.max(f64::MIN_POSITIVE).log10());
    if value <= 0.0 { 0.0 } else { ((value.log10() - low) / (high - low).max(0.3)).clamp(0.0, 1.0) }
}

/// Escapes a text for XML and HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_width() {
        let bar = |value: f64| Bar { label: "x".into(), value, text: "t".into(), class: 0 };
        let svg = bars("title", &[bar(1.0), bar(4.0)], false);
        assert!(svg.contains("width=\"105.0\"") && svg.contains("width=\"420.0\""), "{svg}");
        assert!(bars("t", &[bar(0.0)], true).contains("width=\"1.0\""));
    }
}
