//! A report for people: any JSON document as indented lines, with units taken from the names (`…_bytes`, `…_ms`).

use serde_json::{Map, Value};

use crate::units::show_bytes;

/// Renders `document` as lines.
pub fn render(document: &Value) -> String {
    let mut text = String::new();
    match document {
        Value::Object(fields) => object(fields, 0, &mut text),
        other => line(0, &scalar("", other), &mut text),
    }
    text
}

fn object(fields: &Map<String, Value>, depth: usize, text: &mut String) {
    let width = fields.iter().filter(|(_, value)| is_scalar(value)).map(|(name, _)| label(name).len()).max().unwrap_or(0);
    for (name, value) in fields {
        match value {
            Value::Null => {}
            Value::Object(inner) => {
                line(depth, &label(name), text);
                object(inner, depth + 1, text);
            }
            Value::Array(items) => array(name, items, depth, text),
            value => line(depth, &format!("{:width$}  {}", label(name), scalar(name, value)), text),
        }
    }
}

fn array(name: &str, items: &[Value], depth: usize, text: &mut String) {
    let numbers = items.iter().all(|item| is_scalar(item) && !item.is_string());
    if numbers && !items.is_empty() {
        let items: Vec<String> = items.iter().map(|item| scalar(name, item)).collect();
        return line(depth, &format!("{}  {}", label(name), items.join(" ")), text);
    }
    if items.is_empty() {
        return line(depth, &format!("{}  none", label(name)), text);
    }
    line(depth, &format!("{} ({})", label(name), items.len()), text);
    for item in items {
        match item {
            Value::Object(fields) => element(fields, depth + 1, text),
            other => line(depth + 1, &format!("- {}", scalar(name, other)), text),
        }
    }
}

/// One element of a list: its first field on a line of its own, the rest below it.
fn element(fields: &Map<String, Value>, depth: usize, text: &mut String) {
    let head = ["name", "node", "path", "id"].into_iter().find_map(|name| Some((name, fields.get(name)?)));
    let Some((name, value)) = head else { return object(fields, depth, text) };
    let head = scalar(name, value);
    line(depth, &if value.is_string() { head } else { format!("{} {head}", label(name)) }, text);
    let rest = fields.iter().filter(|(field, _)| *field != name).map(|(field, value)| (field.clone(), value.clone())).collect();
    object(&rest, depth + 1, text);
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Object(_) | Value::Array(_) | Value::Null)
}

/// Label of a field: `live_bytes` is shown as `live`, because the value carries the unit.
fn label(name: &str) -> String {
    let name = name.strip_suffix("_bytes").or_else(|| name.strip_suffix("_ms")).unwrap_or(name);
    name.replace('_', " ")
}

fn scalar(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if name.ends_with("_bytes") => number.as_u64().map_or_else(|| number.to_string(), show_bytes),
        Value::Number(number) if name.ends_with("_ms") => format!("{number} ms"),
        Value::Number(number) if matches!(name, "utilization" | "utilization_limit" | "garbage" | "hit_share") => {
            share(number.as_f64().unwrap_or(0.0))
        }
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.into(),
        other => other.to_string(),
    }
}

fn share(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn line(depth: usize, content: &str, text: &mut String) {
    text.extend(std::iter::repeat_n("  ", depth));
    text.push_str(content.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report() {
        let report = json!({
            "garbage": 0.125,
            "pools": [{ "node": 1, "live_bytes": 2048, "path": "/x" }],
            "problems": ["a", "b"],
            "cpus": [0, 1],
            "open_ms": 5,
            "sound": true,
            "oldest": null,
            "advice": [],
        });
        let text = render(&report);
        for part in [
            "garbage  12.5 %\n",
            "pools (1)\n",
            "  node 1\n",
            "    live  2.0 KiB\n",
            "problems (2)\n  - a\n",
            "cpus  0 1\n",
            "sound    yes\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(!text.contains("oldest"));
    }
}
