//! `$NAME`, `${NAME}` and `${NAME:-default}`.

/// Maximum depth of variables that refer to other variables.
const MAX_DEPTH: usize = 32;
/// The longest result, in bytes; otherwise a few variables that refer to each other twice would fill the
/// memory.
const MAX_BYTES: usize = 64 << 10;

/// Why a text cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// Variables refer to each other in a cycle, or are nested too deeply.
    #[error("variables nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// The result is too long, or takes too many steps.
    #[error("the expansion is too long")]
    Endless,
    /// A brace is not closed.
    #[error("${{{0} without closing brace")]
    Unclosed(String),
    /// Braces without a name.
    #[error("${{}} without a name")]
    Unnamed,
    /// A variable is not set and has no default.
    #[error("variable ${0}, which is neither in [PATHS] nor in the environment")]
    Unset(String),
}

/// Expands a text; `lookup` gives the values of variables.
pub(crate) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, ExpandError> {
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
) -> Result<(), ExpandError> {
    if depth > MAX_DEPTH {
        return Err(ExpandError::TooDeep);
    }
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        if out.len() > MAX_BYTES {
            return Err(ExpandError::Endless);
        }
        let after = &rest[at + 1..];
        let (name, default, tail) = if let Some(braced) = after.strip_prefix('{') {
            let end = closing_brace(braced).ok_or_else(|| ExpandError::Unclosed(braced.to_owned()))?;
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
            // A dollar sign without a name stands for itself.
            if after.starts_with('{') {
                return Err(ExpandError::Unnamed);
            }
            out.push('$');
            rest = after;
            continue;
        }
        *work_left = work_left.checked_sub(1).ok_or(ExpandError::Endless)?;
        let value = lookup(name).filter(|value| default.is_none() || !value.is_empty());
        match (value, default) {
            (Some(value), _) => expand_into(&value, lookup, depth + 1, work_left, out)?,
            (None, Some(default)) => expand_into(default, lookup, depth + 1, work_left, out)?,
            (None, None) => return Err(ExpandError::Unset(name.to_owned())),
        }
        rest = tail;
    }
    out.push_str(rest);
    if out.len() > MAX_BYTES {
        return Err(ExpandError::Endless);
    }
    Ok(())
}

/// The position of the brace that closes the one before `text`; nested braces (in defaults) come in pairs.
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
        let unset = || ExpandError::Unset("NO".to_owned());
        let unclosed = |text: &str| ExpandError::Unclosed(text.to_owned());
        for (text, error) in [
            ("$NO", unset()),
            ("${NO}", unset()),
            ("${A", unclosed("A")),
            ("${NO:-${A}", unclosed("NO:-${A}")),
            ("$LOOP", ExpandError::TooDeep),
            ("${LOOP}", ExpandError::TooDeep),
            ("$BOMB", ExpandError::Endless),
            ("${}", ExpandError::Unnamed),
            ("${:-x}", ExpandError::Unnamed),
        ] {
            assert_eq!(expand(text, &lookup), Err(error), "{text}");
        }
        assert_eq!(unclosed("A").to_string(), "${A without closing brace");
        assert_eq!(ExpandError::Unnamed.to_string(), "${} without a name");
    }
}
