//! A policy with its compiled expressions.

use k8s_openapi::api::admissionregistration::v1::{MatchResources, ValidatingAdmissionPolicy};
use kube_cel::cel::{Program, Value as CelValue};
use serde_json::{Value, json};

use crate::error::{ApiError, invalid_value, required};
use crate::schema::Cause;

use super::WriteRequest;
use super::cel::{Inputs, Scope, VARIABLES};

pub(crate) struct Policy {
    pub(super) constraints: MatchResources,
    /// `apiVersion` and `kind` of its parameters.
    pub(super) param_kind: Option<(String, String)>,
    /// Whether a request is denied where an expression fails.
    pub(super) fails_closed: bool,
    conditions: Vec<Expression>,
    variables: Vec<(String, Program)>,
    validations: Vec<Validation>,
}

struct Expression {
    text: String,
    program: Program,
}

struct Validation {
    rule: Expression,
    message: Option<String>,
    message_program: Option<Program>,
    /// Code and reason of the response.
    response: (u16, &'static str),
}

#[derive(Debug)]
pub(super) struct Denial {
    pub(super) message: String,
    response: (u16, &'static str),
}

const INVALID: (u16, &str) = (422, "Invalid");

/// Errors of a policy that cannot be used.
pub(crate) fn validate(value: &Value) -> Vec<Cause> {
    Policy::compile(value).err().into_iter().collect()
}

impl Policy {
    /// Reads a policy and compiles its expressions.
    pub(super) fn compile(value: &Value) -> Result<Self, Cause> {
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(value.clone())
            .map_err(|error| invalid_value("spec", "", &error.to_string()))?;
        let spec = policy.spec.unwrap_or_default();
        let constraints = constraints(spec.match_constraints)?;
        let conditions = spec.match_conditions.unwrap_or_default();
        let conditions = conditions.into_iter().enumerate().map(|(at, one)| {
            condition(one.expression, &format!("spec.matchConditions[{at}].expression"))
        });
        let variables = spec.variables.unwrap_or_default();
        let variables = variables.into_iter().enumerate().map(|(at, one)| {
            let path = format!("spec.variables[{at}].expression");
            Ok((one.name, expression(one.expression, &path)?.program))
        });
        let validations = spec.validations.unwrap_or_default();
        let validations = validations.into_iter().enumerate().map(|(at, one)| {
            let path = format!("spec.validations[{at}]");
            let message = one.message_expression;
            let message_path = format!("{path}.messageExpression");
            let message = message.map(|text| expression(text, &message_path)).transpose()?;
            Ok(Validation {
                rule: expression(one.expression, &format!("{path}.expression"))?,
                message: one.message,
                message_program: message.map(|one| one.program),
                response: response(one.reason.as_deref(), &path)?,
            })
        });
        Ok(Self {
            conditions: conditions.collect::<Result<_, _>>()?,
            variables: variables.collect::<Result<_, _>>()?,
            validations: validations.collect::<Result<_, _>>()?,
            constraints,
            param_kind: spec
                .param_kind
                .map(|kind| (kind.api_version.unwrap_or_default(), kind.kind.unwrap_or_default())),
            fails_closed: spec.failure_policy.as_deref() != Some("Ignore"),
        })
    }

    /// Why the policy denies a request: one denial for each validation that is violated.
    pub(super) fn judge(&self, inputs: &Inputs) -> Vec<Denial> {
        inputs.evaluate(|scope| {
            match self.is_for(scope) {
                Ok(true) => {}
                Ok(false) => return vec![],
                Err(error) => return self.failed(error).into_iter().collect(),
            }
            let scope = scope.with_variables(&self.variables);
            self.validations.iter().filter_map(|one| self.violated(one, &scope)).collect()
        })
    }

    /// Whether all match conditions are true. One that is false decides, even if others fail.
    fn is_for(&self, scope: &Scope<'_>) -> Result<bool, String> {
        let mut errors = Vec::new();
        for condition in &self.conditions {
            match condition.is_true(scope) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => errors.push(error),
            }
        }
        match errors.as_slice() {
            [] => Ok(true),
            [error] => Err(error.clone()),
            errors => Err(format!("[{}]", errors.join(", "))),
        }
    }

    fn violated(&self, validation: &Validation, scope: &Scope<'_>) -> Option<Denial> {
        match validation.rule.is_true(scope) {
            Ok(true) => None,
            Ok(false) => {
                let message = validation.text(scope);
                Some(Denial { message, response: validation.response })
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&self, why: String) -> Option<Denial> {
        self.fails_closed.then(|| Denial::invalid(why))
    }
}

impl Expression {
    fn is_true(&self, scope: &Scope<'_>) -> Result<bool, String> {
        scope
            .is_true(&self.program)
            .map_err(|error| format!("expression '{}' resulted in error: {error}", self.text))
    }
}

impl Validation {
    fn text(&self, scope: &Scope<'_>) -> String {
        if let Some(program) = &self.message_program
            && let Ok(CelValue::String(text)) = scope.execute(program)
            && !text.trim().is_empty()
            && !text.contains('\n')
        {
            return text.trim().to_owned();
        }
        match &self.message {
            Some(message) => message.trim().to_owned(),
            None => format!("failed expression: {}", self.rule.text.trim()),
        }
    }
}

impl Denial {
    /// With the response that a policy gives without another one.
    pub(super) fn invalid(message: String) -> Self {
        Self { message, response: INVALID }
    }

    /// The response, with the names of the policy and its binding.
    pub(super) fn into_error(
        self,
        write: &WriteRequest<'_>,
        (policy, binding): (&str, &str),
    ) -> ApiError {
        let why = self.message;
        let why = format!(
            "ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {why}"
        );
        let mut error = ApiError::forbidden(write.resource, write.name, &why);
        (error.code, error.reason) = self.response;
        error.details["causes"] = json!([{"message": why}]);
        error
    }

    pub(super) fn into_warning(self, (policy, binding): (&str, &str)) -> String {
        let why = self.message;
        format!(
            "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {why}"
        )
    }
}

fn constraints(constraints: Option<MatchResources>) -> Result<MatchResources, Cause> {
    let constraints = constraints.ok_or_else(|| required("spec.matchConstraints", ""))?;
    if constraints.resource_rules.as_ref().is_none_or(Vec::is_empty) {
        return Err(required("spec.matchConstraints.resourceRules", ""));
    }
    Ok(constraints)
}

/// Match conditions are evaluated before the variables of the policy, and cannot refer to them.
fn condition(text: String, path: &str) -> Result<Expression, Cause> {
    let condition = expression(text, path)?;
    if condition.program.references().has_variable(VARIABLES) {
        let why = format!("compilation failed: undeclared reference to '{VARIABLES}'");
        return Err(invalid_value(path, &condition.text, &why));
    }
    Ok(condition)
}

fn expression(text: String, path: &str) -> Result<Expression, Cause> {
    let program = Program::compile(&text)
        .map_err(|error| invalid_value(path, &text, &format!("compilation failed: {error}")))?;
    Ok(Expression { text, program })
}

fn response(reason: Option<&str>, path: &str) -> Result<(u16, &'static str), Cause> {
    match reason {
        None | Some("Invalid") => Ok(INVALID),
        Some("Forbidden") => Ok((403, "Forbidden")),
        Some("Unauthorized") => Ok((401, "Unauthorized")),
        Some("RequestEntityTooLarge") => Ok((413, "RequestEntityTooLarge")),
        Some(other) => Err(invalid_value(format!("{path}.reason"), other, "unsupported value")),
    }
}
