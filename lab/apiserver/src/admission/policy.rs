//! A policy with its compiled expressions.

use k8s_openapi::api::admissionregistration::v1::{MatchResources, ValidatingAdmissionPolicy};
use kube_cel::cel::{Program, Value as CelValue};
use serde_json::{Value, json};

use crate::error::{ApiError, invalid_value};
use crate::schema::Cause;

use super::Asked;
use super::cel::{Inputs, Scope};

/// A policy.
pub(crate) struct Policy {
    pub(super) constraints: Option<MatchResources>,
    /// `apiVersion` and `kind` of its parameters.
    pub(super) param_kind: Option<(String, String)>,
    /// Whether a request is denied where an expression fails.
    pub(super) fails_closed: bool,
    conditions: Vec<Expression>,
    /// With their names.
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

/// Why a request is denied.
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
        let conditions = spec.match_conditions.unwrap_or_default();
        let conditions = conditions.into_iter().enumerate().map(|(at, one)| {
            expression(one.expression, &format!("spec.matchConditions[{at}].expression"))
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
            constraints: spec.match_constraints,
            param_kind: spec
                .param_kind
                .map(|kind| (kind.api_version.unwrap_or_default(), kind.kind.unwrap_or_default())),
            fails_closed: spec.failure_policy.as_deref() != Some("Ignore"),
        })
    }

    /// Why the policy denies a request.
    pub(super) fn judge(&self, inputs: &Inputs) -> Option<Denial> {
        inputs.evaluate(&self.variables, |scope| {
            for condition in &self.conditions {
                match scope.is_true(&condition.program) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => {
                        return self.failed(format!("match condition failed: {error}"));
                    }
                }
            }
            self.validations.iter().find_map(|one| self.violated(one, scope))
        })
    }

    fn violated(&self, validation: &Validation, scope: &Scope<'_>) -> Option<Denial> {
        match scope.is_true(&validation.rule.program) {
            Ok(true) => None,
            Ok(false) => {
                let message = validation.text(scope);
                Some(Denial { message, response: validation.response })
            }
            Err(error) => {
                let rule = &validation.rule.text;
                self.failed(format!("expression '{rule}' resulted in error: {error}"))
            }
        }
    }

    fn failed(&self, why: String) -> Option<Denial> {
        self.fails_closed.then(|| Denial::invalid(why))
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
    pub(super) fn into_error(self, asked: &Asked<'_>, (policy, binding): (&str, &str)) -> ApiError {
        let why = self.message;
        let why = format!(
            "ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {why}"
        );
        let mut error = ApiError::forbidden(asked.resource, asked.name, &why);
        (error.code, error.reason) = self.response;
        error.details["causes"] = json!([{"message": why}]);
        error
    }
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
