//! The variables of a container, from everywhere they may come.

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod};

use super::data::{Data, field_value, resource_value};
use super::error::PlanError;
use super::expand::expand;

/// The variables in order, each once, the last word winning.
///
/// A node resolves variables before it sends a pod: it replaces `$(NAME)` and turns references into
/// values. Such values are final, dollars and all. Only where references are still there nobody has
/// done so, and `$(NAME)` is replaced here.
pub(super) fn variables(
    container: &Container,
    pod: &Pod,
    data: &Data<'_>,
) -> Result<Vec<(String, String)>, PlanError> {
    let mut variables: Vec<(String, String)> = Vec::new();
    let unresolved = container.env_from.iter().flatten().next().is_some()
        || container.env.iter().flatten().any(|variable| variable.value_from.is_some());
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let (entries, optional, what) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(map), _) => {
                (data.config_map(&map.name), map.optional, format!("the ConfigMap `{}`", map.name))
            }
            (_, Some(secret)) => {
                (data.secret(&secret.name), secret.optional, format!("the Secret `{}`", secret.name))
            }
            (None, None) => continue,
        };
        match entries {
            Some(entries) => {
                for (key, value) in entries {
                    set(&mut variables, format!("{prefix}{key}"), text(value, &key)?);
                }
            }
            None if optional == Some(true) => {}
            None => return Err(PlanError::Missing(what)),
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            None if !unresolved => variable.value.clone().or_else(|| Some(String::new())),
            None => {
                let known = |name: &str| {
                    variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
                };
                Some(expand(variable.value.as_deref().unwrap_or_default(), known))
            }
            Some(source) => referenced(source, container, pod, data)?,
        };
        if let Some(value) = value {
            set(&mut variables, variable.name.clone(), value);
        }
    }
    for (name, value) in &variables {
        let odd = name.is_empty()
            || name.starts_with('-')
            || name.contains(['=', '\0', '\n'])
            || value.contains('\0');
        if odd {
            return Err(PlanError::Value(format!("the variable `{}`", name.escape_debug())));
        }
    }
    Ok(variables)
}

fn set(variables: &mut Vec<(String, String)>, name: String, value: String) {
    match variables.iter_mut().find(|(known, _)| *known == name) {
        Some((_, old)) => *old = value,
        None => variables.push((name, value)),
    }
}

fn text(bytes: Vec<u8>, key: &str) -> Result<String, PlanError> {
    String::from_utf8(bytes).map_err(|_| PlanError::Value(format!("the variable `{}`", key.escape_debug())))
}

fn referenced(
    source: &EnvVarSource,
    container: &Container,
    pod: &Pod,
    data: &Data<'_>,
) -> Result<Option<String>, PlanError> {
    if let Some(field) = &source.field_ref {
        return field_value(field, pod).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        return Ok(Some(resource_value(resource, pod, Some(&container.name))));
    }
    let (entries, key, optional, what) = match (&source.config_map_key_ref, &source.secret_key_ref) {
        (Some(map), _) => {
            (data.config_map(&map.name), &map.key, map.optional, format!("the ConfigMap `{}`", map.name))
        }
        (_, Some(s)) => (data.secret(&s.name), &s.key, s.optional, format!("the Secret `{}`", s.name)),
        (None, None) => return Ok(None),
    };
    match entries.and_then(|mut entries| entries.remove(key)) {
        Some(value) => text(value, key).map(Some),
        None if optional == Some(true) => Ok(None),
        None => Err(PlanError::Missing(format!("the key `{key}` of {what}"))),
    }
}
