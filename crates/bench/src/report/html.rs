//! The HTML report: for each group of comparable records a chart of rates and one of p99 latencies, then the whole
//! table. It is one file, without scripts and without references to anything outside.

use std::fmt::Write;

use super::svg::{Bar, bars, escape};
use super::{COLUMNS, Group, cells, count, groups, latency};
use crate::harness::record::Record;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}\
h2{font-size:1.05rem;margin:2rem 0 .3rem}p.sub{color:#59636e;margin:.2rem 0}svg{max-width:100%;height:auto;display:block}\
svg text{font-size:13px;fill:currentColor}.c0{fill:#1f6feb}.c1{fill:#bf5b04}.c2{fill:#1a7f37}.c3{fill:#8250df}.c4{fill:#cf222e}.c5{fill:#57606a}\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;margin-top:2rem}td,th{border-bottom:1px solid #d1d9e0;padding:.25rem .6rem;text-align:right}\
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}td,th{border-color:#30363d}p.sub{color:#9198a1}}";

/// The report as one HTML page.
pub fn html(records: &[Record], heading: &str) -> String {
    let mut out = head(heading);
    if let Some(r) = records.first() {
        let m = &r.machine;
        let line = format!("Commit {}, {}, {} ({} processors), kernel {}", m.commit, m.date, m.cpu, m.processors, m.kernel);
        let _ = write!(out, "<p class=\"sub\">{}</p>", escape(&line));
    }
    let mut stores: Vec<&str> = Vec::new();
    for group in groups(records) {
        group.records.iter().for_each(|r| {
            if !stores.contains(&r.store.as_str()) {
                stores.push(&r.store)
            }
        });
        section(&mut out, &group, &stores);
    }
    table(&mut out, records);
    out.push_str("</body></html>\n");
    out
}

/// The start of a page, with its heading.
fn head(heading: &str) -> String {
    let heading = escape(heading);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{heading}</title><style>{STYLE}</style></head><body><h1>{heading}</h1>"
    )
}

/// A page of charts and, below, `text` as it is. Each chart has a title and labelled bars that show `what`.
pub fn chart_page(heading: &str, what: &str, charts: &[(String, Vec<(String, f64)>)], text: &str) -> String {
    let mut out = head(heading);
    for (title, values) in charts {
        let _ = write!(out, "<h2>{}</h2><p class=\"sub\">{}</p>", escape(title), escape(what));
        let bar = |(class, (label, value)): (usize, &(String, f64))| Bar {
            label: label.clone(),
            value: *value,
            text: format!("{value:.3}"),
            class,
        };
        out.push_str(&bars(what, &values.iter().enumerate().map(bar).collect::<Vec<_>>(), false));
    }
    let _ = write!(out, "<div class=\"scroll\"><pre>{}</pre></div></body></html>", escape(text));
    out.push('\n');
    out
}

fn section(out: &mut String, group: &Group<'_>, stores: &[&str]) {
    let class = |r: &Record| stores.iter().position(|s| *s == r.store).unwrap_or(0);
    let rate = |r: &&Record| Bar { label: r.store.clone(), value: r.ops_per_s, text: count(r.ops_per_s), class: class(r) };
    let tail = |r: &&Record| Bar { label: r.store.clone(), value: r.p99_us, text: format!("{} µs", latency(r.p99_us)), class: class(r) };
    let _ = write!(out, "<h2>{}</h2><p class=\"sub\">operations per second</p>", escape(&group.title));
    out.push_str(&bars("operations per second", &group.records.iter().map(rate).collect::<Vec<_>>(), false));
    out.push_str("<p class=\"sub\">p99 latency, logarithmic</p>");
    out.push_str(&bars("p99 latency", &group.records.iter().map(tail).collect::<Vec<_>>(), true));
}

fn table(out: &mut String, records: &[Record]) {
    out.push_str("<div class=\"scroll\"><table><thead><tr>");
    COLUMNS.iter().chain(&["settings"]).for_each(|head| out.push_str(&format!("<th>{head}</th>")));
    out.push_str("</tr></thead><tbody>");
    for r in records {
        let settings: Vec<String> = r.settings.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        out.push_str("<tr>");
        cells(r).iter().chain(&[settings.join("; ")]).for_each(|cell| out.push_str(&format!("<td>{}</td>", escape(cell))));
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_self_contained_and_escaped() {
        let page = html(&super::super::tests::sample(), "Figures & more");
        assert!(page.contains("Figures &amp; more") && page.contains("a&lt;b") && !page.contains("a<b"));
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        for outside in ["http:", "https:", "<script", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
