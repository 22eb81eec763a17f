//! Settings that contradict each other. Only their author knows which setting is wrong, so the error names
//! both. A run also compares the settings with the driver's declaration.

use secrecy::ExposeSecret as _;
use serde_json::{Map, Value};

use super::{Config, SecretMap, Setting, TIMES_THE_DEADLINE};
use crate::hooks::Hook;
use cmi_driver::{Capabilities, JsonPointer};

/// Refuses settings that rule each other out.
pub fn agree<C>(config: &Config, _: &C) -> garde::Result {
    let found = mandatory_fields_are_there(config)
        .or_else(|| changes_change_something(config))
        .or_else(|| refused_credentials_are_others(config))
        .or_else(|| slow_calls_hang(config).filter(|_| config.hooks.contains_key(&Hook::Slow)));
    found.map_or(Ok(()), |message| Err(garde::Error::new(message)))
}

/// Returns why the setting contradicts the capabilities of the driver.
pub fn with_capabilities(config: &Config, setting: Setting, capabilities: &Capabilities) -> Option<String> {
    match setting {
        Setting::HotUpdates => config
            .hot_updates
            .iter()
            .find_map(|change| stays_cold(config, change, capabilities)),
        Setting::IncompatibleChange => is_hot(config, capabilities),
        _ => None,
    }
}

/// Returns the error of a hot update that changes a field outside UpdateMachine's reach.
fn stays_cold(config: &Config, change: &Value, capabilities: &Capabilities) -> Option<String> {
    let hot = &capabilities.hot_updatable;
    let cold = places(config, change)
        .into_iter()
        .find(|place| !hot.iter().any(|hot| hot.covers(place)))?;
    Some(format!(
        "`hotUpdates` has {change}, which changes {cold}, but the driver declares only {} as \
            `hot_updatable`: correct one of the two",
        written(hot)
    ))
}

/// Returns the error of an incompatible change that does not need another VM: CreateMachine adopts the VM.
fn is_hot(config: &Config, capabilities: &Capabilities) -> Option<String> {
    let change = config.incompatible_change.as_ref()?;
    let hot = &capabilities.hot_updatable;
    let places = places(config, change);
    let all_are_hot = places.iter().all(|place| hot.iter().any(|hot| hot.covers(place)));
    (all_are_hot && !places.is_empty()).then(|| {
        format!(
            "`incompatibleChange` is {change}, and changes nothing but what the driver declares as \
             `hot_updatable`, {}: a VM that differs in nothing else is the same, and CreateMachine adopts \
             it. Take a change that asks for another VM",
            written(hot)
        )
    })
}

fn written(places: &[JsonPointer]) -> String {
    match places {
        [] => "nothing".to_owned(),
        places => places
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Returns the places in the provider spec that a change alters or removes.
fn places(config: &Config, change: &Value) -> Vec<JsonPointer> {
    let changed = changed(&config.provider_spec, change);
    let spec = Value::Object(config.provider_spec.clone());
    let places = changed_places(change).into_iter();
    let differs =
        |place: &JsonPointer| spec.pointer(&place.to_string()) != changed.pointer(&place.to_string());
    places.filter(differs).collect()
}

/// Returns the places that a change sets or removes.
pub fn changed_places(change: &Value) -> Vec<JsonPointer> {
    let Value::Object(fields) = change else {
        return Vec::new();
    };
    let places = fields.iter().flat_map(|(key, value)| {
        let place = JsonPointer::field(key);
        match value {
            Value::Object(_) => below(&place, changed_places(value)),
            _ => vec![place],
        }
    });
    places.collect()
}

fn below(place: &JsonPointer, inner: Vec<JsonPointer>) -> Vec<JsonPointer> {
    let whole = |inner: JsonPointer| {
        let segments = inner.segments().iter();
        segments.fold(place.clone(), |place, segment| place.child(segment))
    };
    inner.into_iter().map(whole).collect()
}

fn changed(spec: &Map<String, Value>, change: &Value) -> Value {
    let mut changed = Value::Object(spec.clone());
    json_patch::merge(&mut changed, change);
    changed
}

fn mandatory_fields_are_there(config: &Config) -> Option<String> {
    let spec = Value::Object(config.provider_spec.clone());
    let absent = |field: &JsonPointer| spec.pointer(&field.to_string()).is_none();
    let field = config.mandatory().into_iter().find(absent)?;
    Some(format!(
        "`mandatoryFields` has {field}, but `providerSpec` has no such field: add it"
    ))
}

fn changes_change_something(config: &Config) -> Option<String> {
    let lists = [
        ("invalidSpecs", &config.invalid_specs),
        ("outOfRangeSpecs", &config.out_of_range_specs),
        ("hotUpdates", &config.hot_updates),
    ];
    let lists = lists
        .into_iter()
        .flat_map(|(name, changes)| changes.iter().map(move |change| (name, change)));
    let single = [
        ("quotaBreakingSpec", &config.quota_breaking_spec),
        ("incompatibleChange", &config.incompatible_change),
    ];
    let single = single
        .into_iter()
        .filter_map(|(name, change)| Some((name, change.as_ref()?)));
    let spec = Value::Object(config.provider_spec.clone());
    for (name, change) in lists.chain(single) {
        if !change.is_object() {
            return Some(format!(
                "`{name}` has {change}: a change must be an object, as a JSON merge patch on `providerSpec`"
            ));
        }
        if changed(&config.provider_spec, change) == spec {
            return Some(format!(
                "`{name}` has {change}, which does not change `providerSpec`"
            ));
        }
    }
    None
}

/// Credentials that have to be refused can't be those that work, nor be refused in two ways.
fn refused_credentials_are_others(config: &Config) -> Option<String> {
    let is_bad = |map: &SecretMap| config.bad_secrets.iter().any(|bad| equal(bad, map));
    if is_bad(&config.secrets) {
        return Some(if config.secrets.is_empty() {
            "`badSecrets` has `{}`, which is no credentials, as in `secrets`: set wrong credentials or, if \
                the driver takes none, `noCredentials: true`"
                .to_owned()
        } else {
            "`badSecrets` has the credentials of `secrets`, which are valid: set wrong credentials".to_owned()
        });
    }
    let restricted = config.restricted_secrets.as_ref()?;
    let same = if equal(restricted, &config.secrets) {
        "secrets"
    } else if is_bad(restricted) {
        "badSecrets"
    } else {
        return None;
    };
    Some(format!(
        "`restrictedSecrets` are also the credentials of `{same}`: set valid credentials without permissions"
    ))
}

fn equal(one: &SecretMap, other: &SecretMap) -> bool {
    one.len() == other.len()
        && one.iter().all(|(key, value)| {
            let other = other.get(key);
            other.is_some_and(|other| other.expose_secret() == value.expose_secret())
        })
}

/// Returns why calls count as hung after the hook `slow`: a call may have to wait for an earlier call that
/// the hook has slowed down.
pub fn slow_calls_hang(config: &Config) -> Option<String> {
    let slow = config.slow();
    (slow >= config.call_limit()).then(|| {
        format!(
            "`callSeconds` is {}, but `shortDeadlineMs` is {}: after hook `slow`, a call takes \
                {TIMES_THE_DEADLINE} times that deadline, {} s, and counts as hung; change one of the two",
            config.call_seconds,
            config.short_deadline_ms,
            slow.as_secs_f64()
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(settings: &str) -> String {
        let yaml = format!("providerSpec: {{size: small, tags: {{team: a}}}}\n{settings}");
        Config::read(&yaml).unwrap_err().to_string()
    }

    #[test]
    fn settings_that_can_not_both_be_meant_are_named_together() {
        for (settings, first, second) in [
            (
                "mandatoryFields: [/region]",
                "`mandatoryFields` has /region",
                "`providerSpec`",
            ),
            (
                "hotUpdates: [{tags: {team: a}}]",
                "`hotUpdates` has",
                "`providerSpec`",
            ),
            (
                "invalidSpecs: [{size: small}]",
                "`invalidSpecs` has",
                "`providerSpec`",
            ),
            (
                "outOfRangeSpecs: [{disk: null}]",
                "`outOfRangeSpecs` has",
                "`providerSpec`",
            ),
            (
                "quotaBreakingSpec: {size: small}",
                "`quotaBreakingSpec` has",
                "`providerSpec`",
            ),
            (
                "incompatibleChange: {}",
                "`incompatibleChange` has",
                "`providerSpec`",
            ),
            (
                "invalidSpecs: [size]",
                "`invalidSpecs` has \"size\"",
                "merge patch",
            ),
            ("badSecrets: [{}]", "`badSecrets` has `{}`", "`secrets`"),
            (
                "secrets: {token: not-a-real-token}\nbadSecrets: [{}, {token: not-a-real-token}]",
                "`badSecrets`",
                "`secrets`",
            ),
            (
                "secrets: {token: not-a-real-token}\nrestrictedSecrets: {token: not-a-real-token}",
                "`restrictedSecrets`",
                "`secrets`",
            ),
            (
                "secrets: {token: not-a-real-token}\nbadSecrets: [{token: \
                 of-a-stranger}]\nrestrictedSecrets: {token: of-a-stranger}",
                "`restrictedSecrets`",
                "`badSecrets`",
            ),
            (
                "callSeconds: 2\nhooks: {slow: [a], restore: [b]}",
                "`callSeconds` is 2",
                "`shortDeadlineMs` is 50",
            ),
            (
                "shortDeadlineMs: 10000\nhooks: {slow: [a], restore: [b]}",
                "`callSeconds` is 300",
                "`shortDeadlineMs` is 10000",
            ),
        ] {
            let error = refused(settings);
            assert!(
                error.contains(first) && error.contains(second),
                "{settings}: {error}"
            );
            assert!(
                !error.contains("of-a-stranger") && !error.contains("not-a-real"),
                "{error}"
            );
        }
    }

    #[test]
    fn settings_that_agree_are_taken() {
        for settings in [
            "secrets: {token: not-a-real-token}\nbadSecrets: [{}, {token: of-a-stranger}]",
            "restrictedSecrets: {token: of-a-stranger}",
            "mandatoryFields: [/size, /tags/team]\nhotUpdates: [{tags: {team: null}}, {tags: {cost: a}}]",
            "callSeconds: 3\nhooks: {slow: [a], restore: [b]}",
            "callSeconds: 1",
        ] {
            let yaml = format!("providerSpec: {{size: small, tags: {{team: a}}}}\n{settings}");
            Config::read(&yaml).unwrap();
        }
    }

    /// `hot_updatable` is known only after the driver has declared it.
    #[test]
    fn a_change_that_contradicts_hot_updatable_is_named() {
        let config = |settings: &str| {
            let yaml = format!("providerSpec: {{size: small, tags: {{team: a}}}}\n{settings}");
            Config::read(&yaml).unwrap()
        };
        let mut capabilities = Capabilities::minimal();
        capabilities.hot_updatable = vec![JsonPointer::field("tags")];
        for (settings, setting, wrong) in [
            ("hotUpdates: [{tags: {team: b}}]", Setting::HotUpdates, None),
            (
                "hotUpdates: [{tags: {team: b}, size: small}]",
                Setting::HotUpdates,
                None,
            ),
            (
                "hotUpdates: [{tags: {team: b}}, {size: large}]",
                Setting::HotUpdates,
                Some("/size"),
            ),
            (
                "incompatibleChange: {size: large}",
                Setting::IncompatibleChange,
                None,
            ),
            (
                "incompatibleChange: {size: large, tags: {team: b}}",
                Setting::IncompatibleChange,
                None,
            ),
            (
                "incompatibleChange: {tags: {team: b}}",
                Setting::IncompatibleChange,
                Some("/tags"),
            ),
        ] {
            let found = with_capabilities(&config(settings), setting, &capabilities);
            assert_eq!(found.is_some(), wrong.is_some(), "{settings}: {found:?}");
            if let (Some(found), Some(place)) = (found, wrong) {
                let names = [&setting.to_string(), "hot_updatable", place];
                assert!(names.iter().all(|name| found.contains(name)), "{found}");
            }
        }
    }

    #[test]
    fn a_change_names_each_place_that_it_sets() {
        let change = json!({"size": 2, "labels": {"a/b": "1", "c": null}});
        let mut places: Vec<_> = changed_places(&change).iter().map(ToString::to_string).collect();
        places.sort();
        assert_eq!(places, ["/labels/a~1b", "/labels/c", "/size"]);
    }
}
