//! Parameters as text: names of keys and values.

use serde_json::Value;

/// Abbreviations in keys, and their usual spelling.
const SPELLINGS: [(&str, &str); 13] = [
    ("mtu", "MTU"),
    ("rtt", "round-trip time"),
    ("tcp", "TCP"),
    ("udp", "UDP"),
    ("quic", "QUIC"),
    ("fec", "FEC"),
    ("cpu", "CPU"),
    ("ack", "ACK"),
    ("rto", "RTO"),
    ("mss", "MSS"),
    ("http", "HTTP"),
    ("dns", "DNS"),
    ("xor", "XOR"),
];
const UNITS: [(&str, &str); 9] = [
    ("ms", "ms"),
    ("us", "\u{b5}s"),
    ("seconds", "s"),
    ("bytes", "bytes"),
    ("mbps", "Mb/s"),
    ("gbps", "Gb/s"),
    ("mb", "MB"),
    ("percent", "%"),
    ("hz", "Hz"),
];

/// Returns a key as words, its unit after a comma: `link_rtt_ms` is "Link round-trip time, ms".
pub(super) fn name(key: &str) -> String {
    let mut parts: Vec<&str> = key.split('_').filter(|part| !part.is_empty()).collect();
    let unit = parts.last().and_then(|last| UNITS.iter().find(|(short, _)| short == last));
    let unit = unit.filter(|_| parts.len() > 1).map(|(_, unit)| *unit);
    if unit.is_some() {
        parts.pop();
    }
    let words = parts.iter().map(|part| spelt(part)).collect::<Vec<_>>().join(" ");
    let mut letters = words.chars();
    let first = letters.next().map_or(String::new(), |first| first.to_uppercase().to_string());
    let words = first + letters.as_str();
    unit.map_or(words.clone(), |unit| format!("{words}, {unit}"))
}

fn spelt(part: &str) -> &str {
    SPELLINGS.iter().find(|(short, _)| *short == part).map_or(part, |(_, spelling)| spelling)
}

/// Formats a value without JSON syntax.
pub(super) fn value(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Null => "-".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Array(items) => list(items.iter().map(self::value).collect()),
        Value::Object(fields) => {
            let field =
                |(key, item): (&String, &Value)| format!("{} {}", name(key), self::value(item));
            list(fields.iter().map(field).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_and_values_are_words() {
        assert_eq!(name("link_rtt_ms"), "Link round-trip time, ms");
        assert_eq!(name("mtu"), "MTU");
        assert_eq!(name("bytes"), "Bytes");
        assert_eq!(name("web_server"), "Web server");
        assert_eq!(value(&json!([1, "two", true])), "1, two, yes");
        assert_eq!(value(&json!({"loss_percent": 1.5})), "Loss, % 1.5");
    }
}
