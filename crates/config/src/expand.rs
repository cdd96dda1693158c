//! `$NAME`, `${NAME}` and `${NAME:-default}`.

/// How deep variables may refer to variables.
const MAX_DEPTH: usize = 32;
/// The longest result, in bytes: a few variables that name each other twice would fill the memory.
const MAX_BYTES: usize = 64 << 10;

/// Expands a text; `lookup` knows the variables.
pub(crate) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut work_left = 4096;
    expand_into(text, lookup, 0, &mut work_left, &mut out)?;
    Ok(out)
}

fn expand_into(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
    depth: usize,
    work_left: &mut usize,
    out: &mut String,
) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("variables that refer to each other more than {MAX_DEPTH} deep"));
    }
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        if out.len() > MAX_BYTES {
            return Err("a text that expands without end".to_owned());
        }
        let after = &rest[at + 1..];
        let (name, default, tail) = if let Some(braced) = after.strip_prefix('{') {
            let end = closing_brace(braced).ok_or_else(|| format!("${{{braced} without closing brace"))?;
            let (inside, tail) = (&braced[..end], &braced[end + 1..]);
            match inside.split_once(":-") {
                Some((name, default)) => (name, Some(default), tail),
                None => (inside, None, tail),
            }
        } else {
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
            (&after[..end], None, &after[end..])
        };
        if name.is_empty() {
            // A dollar sign that names nothing stands for itself.
            if after.starts_with('{') {
                return Err("${} without a name".to_owned());
            }
            out.push('$');
            rest = after;
            continue;
        }
        *work_left = work_left.checked_sub(1).ok_or("a text that expands without end")?;
        let value = lookup(name).filter(|value| default.is_none() || !value.is_empty());
        match (value, default) {
            (Some(value), _) => expand_into(&value, lookup, depth + 1, work_left, out)?,
            (None, Some(default)) => expand_into(default, lookup, depth + 1, work_left, out)?,
            (None, None) => {
                return Err(format!("variable ${name}, which is neither in [PATHS] nor in the environment"));
            }
        }
        rest = tail;
    }
    out.push_str(rest);
    if out.len() > MAX_BYTES {
        return Err("a text that expands without end".to_owned());
    }
    Ok(())
}

/// Where the brace that was opened before `text` closes; braces within (of defaults) come in pairs.
fn closing_brace(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    let bytes = text.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'{' if at > 0 && bytes[at - 1] == b'$' => open += 1,
            b'}' if open == 0 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        let value = match name {
            "A" => "a",
            "B_2" => "${A}b",
            "EMPTY" => "",
            "LOOP" => "$LOOP",
            "BOMB" => "$BOMB1$BOMB1$BOMB1$BOMB1",
            "BOMB1" => "$BOMB2$BOMB2$BOMB2$BOMB2$BOMB2$BOMB2$BOMB2$BOMB2$BOMB2$BOMB2",
            "BOMB2" => "$BOMB3$BOMB3$BOMB3$BOMB3$BOMB3$BOMB3$BOMB3$BOMB3$BOMB3$BOMB3",
            "BOMB3" => "$A$A$A$A$A$A$A$A$A$A$A$A$A$A$A$A$A$A$A$A",
            "HOME" => "/home/x",
            _ => return None,
        };
        Some(value.to_owned())
    }

    #[test]
    fn expands() {
        for (text, want) in [
            ("", ""),
            ("plain", "plain"),
            ("$A", "a"),
            ("x$A/y", "xa/y"),
            ("${A}x", "ax"),
            ("$B_2", "ab"),
            ("${NO:-d}", "d"),
            ("${NO:-}", ""),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY}", ""),
            ("${NO:-${NOR:-${A}x}y}z", "axyz"),
            (
                "${T:-${XDG:-${HOME}/.local/share/}/.local/share/}/taler/",
                "/home/x/.local/share//.local/share//taler/",
            ),
            ("${A:-${NOTHING}}", "a"),
            ("100$", "100$"),
            ("$/x", "$/x"),
            ("$$A", "$a"),
        ] {
            assert_eq!(expand(text, &lookup).as_deref(), Ok(want), "{text}");
        }
        for text in ["$NO", "${NO}", "${A", "${NO:-${A}", "$LOOP", "${LOOP}", "$BOMB", "${}", "${:-x}"] {
            assert!(expand(text, &lookup).is_err(), "{text}");
        }
    }
}
