//! Normalises replies: removes what differs by design.

use hither_resp::Value;

/// Returns a reply without the parts that may differ.
pub fn normal(name: &str, value: Value) -> Value {
    let sort = |mut items: Vec<Value>| {
        items.sort_by_key(|item| format!("{item:?}"));
        items
    };
    match (name, value) {
        ("KEYS" | "HKEYS" | "HVALS", Value::Array(items)) => Value::Array(sort(items)),
        ("HGETALL", Value::Array(items)) => Value::Array(sort(pairs(items))),
        ("HGETALL", Value::Map(pairs)) => Value::Array(sort(pairs.into_iter().map(|(k, v)| Value::Array(vec![k, v])).collect())),
        ("HSCAN" | "ZSCAN", Value::Array(mut parts)) => {
            if let Some(Value::Array(items)) = parts.get_mut(1) {
                *items = sort(pairs(std::mem::take(items)).into_iter().map(numbers).collect());
            }
            Value::Array(parts)
        }
        ("SCAN", Value::Array(mut parts)) => {
            if let Some(Value::Array(items)) = parts.get_mut(1) {
                *items = sort(std::mem::take(items));
            }
            Value::Array(parts)
        }
        ("TTL" | "EXPIRETIME", Value::Integer(number)) if number > 0 => Value::Integer(number.saturating_add(50) / 100),
        ("PTTL" | "PEXPIRETIME", Value::Integer(number)) if number > 0 => Value::Integer(number.saturating_add(50_000) / 100_000),
        (name, value) if name.starts_with('Z') || name.starts_with("BZ") => numbers(value),
        (_, value) => value,
    }
}

/// Groups items in pairs.
fn pairs(items: Vec<Value>) -> Vec<Value> {
    items.chunks(2).map(|pair| Value::Array(pair.to_vec())).collect()
}

/// Turns texts that are numbers into numbers.
fn numbers(value: Value) -> Value {
    match value {
        Value::Bulk(text) => match String::from_utf8_lossy(&text).parse::<f64>() {
            Ok(number) => Value::Double(number + 0.0),
            Err(_) => Value::Bulk(text),
        },
        Value::Double(number) => Value::Double(number + 0.0),
        Value::Array(items) => Value::Array(items.into_iter().map(numbers).collect()),
        other => other,
    }
}

/// Whether two texts are numbers that agree in fifteen digits.
pub fn is_close(a: &[u8], b: &[u8]) -> bool {
    let [Ok(a), Ok(b)] = [a, b].map(|text| String::from_utf8_lossy(text).parse::<f64>()) else { return false };
    (a - b).abs() <= a.abs() * 1e-15
}
